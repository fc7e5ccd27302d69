"""What a collector is and how it reports.

A collector runs in a worker process of its own, under a deadline, and may be killed at any instruction. So it says
what it is doing before it does it, and hands over what it has process by process: what was handed over is kept.

A record may be handed over twice (first look, second look): the later one wins, by identity (`agentd.engine` lists
what identity is for each kind). So a collector with two looks reports the first at once and the whole record again,
with what moved, after the window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from freezeframe.agentd.host import Host
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import Snapshot


class Tier(Enum):
    """What a collector may hang on."""

    # Reads nothing that a stuck process can block: /proc/PID/{stat,status,comm,wchan,syscall,stack,cgroup,io,fd}.
    LOCK_FREE = 1
    # Reads the memory of targets, or runs helpers that do.
    MEMORY = 2
    # Asks over the network, reads files.
    OUTSIDE = 3


class Report(Protocol):
    """How a collector hands over what it finds. Every call is cheap and safe at any time."""

    def doing(self, what: str) -> None:
        """Say what comes next, such as "reading /proc/4711/cmdline": named when the worker is killed in it.

        Numbers in it that are pids of targets name the targets at work, the first one above all, until the next call of
        any kind. Say "waiting for the second look" before a wait, so that it counts as none's.
        """

    def part(self, part: Snapshot) -> None:
        """Hand over records: a Snapshot with the fields filled that this collector brings."""

    def done(self, pid: int) -> None:
        """Say that one target is finished: it is not given to another worker when this one is killed."""

    def missed(self, pid: int, why: str) -> None:
        """Say that one target could not be looked at, or not wholly; the outcome becomes PARTIAL."""

    def partial(self, detail: str, hint: str = "") -> None:
        """Say that something is missing that belongs to no single target; the outcome becomes PARTIAL."""


class UnavailableError(Exception):
    """This collector can bring nothing here; `hint` says what to install or grant. Outcome UNAVAILABLE."""

    def __init__(self, detail: str, hint: str = "") -> None:
        """Keep the sentence and the next step."""
        super().__init__(detail)
        self.hint = hint


class SkippedError(Exception):
    """There was nothing to look at, with why. Outcome SKIPPED."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """One entry of the explicit list."""

    # verb_noun, as in outcomes and on the command line.
    name: str
    tier: Tier
    # Does the work, in a worker. Raises UnavailableError, SkippedError; anything else becomes FAILED.
    collect: Callable[[Job, Host, Report], None]
    # A target at work for so long, milliseconds, is stuck; None where the collector bounds its own waits.
    patience_ms: float | None = None
    # Whether it looks at this target; a collector over the whole host has None and runs once.
    wants: Callable[[Target], bool] | None = None
    # Whether it calls into a GPU driver, where SIGKILL can wedge the GPU: its worker gets SIGTERM instead.
    in_gpu_driver: bool = False
    # Whether its worker gets a socket to the recorder (`Host.recorder`).
    asks_recorder: bool = False
    # Whether it goes on until its deadline, handing over what it sees: its worker is looked at once a second.
    resident: bool = False
