"""What a capture is asked for and how it reports: shared by service, schedules and engine."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from freezeframe.judge.model import Outcome, Triggered


class Urgency(enum.IntEnum):
    """Which of the captures that nobody called for is next when several wait; among equals who came first."""

    # What it is to show goes away: of a process that ended, its parent keeps what is left for a moment.
    PASSING = 0
    # The first look of a trigger: what was seen may be over soon.
    FIRST_LOOK = 1
    # Further looks of a trigger, and what is captured at a time.
    PATIENT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSpec:
    """One capture, with the agent's policy already applied."""

    # Time between the two looks, milliseconds; 0 = one look.
    window_ms: float = 1000.0
    # Time for the whole capture, milliseconds.
    deadline_ms: float = 5000.0
    # Only these processes and those they talk to; empty = those found.
    pids: tuple[int, ...] = ()
    # The client that matters.
    client_pid: int | None = None
    client_address: str = ""
    # Names of collectors; empty `only` = all.
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    profile_s: float = 0.0
    # Of several hosts: TCP ports on which the others serve.
    toward: tuple[int, ...] = ()
    allow_seize: bool = False
    note: str = ""
    # "snap", "schedule NAME", "trigger CONDITION".
    trigger: str = "snap"
    # Of a capture that nobody called for.
    schedule: str = ""
    triggered: Triggered | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """State of one collector during a capture."""

    collector: str
    # None while it runs.
    outcome: Outcome | None = None
    # What it does now.
    doing: str = ""
    # Targets done, and in all (0 = unknown).
    done: int = 0
    total: int = 0


OnStep = Callable[[Step], None]
