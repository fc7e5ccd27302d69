"""The only reader of /proc, /sys, netlink and target memory. Imports nothing of freezeframe but the model.

The world comes in by argument: a root path, so that a recorded tree can stand in for a live host, and a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Time as the agent uses it: monotonic for every duration and deadline, wall only to print."""

    # Seconds, never set back.
    monotonic: Callable[[], float] = time.monotonic
    # Seconds since boot, suspend included: what /proc/PID/stat counts from.
    boottime: Callable[[], float] = field(default=lambda: time.clock_gettime(time.CLOCK_BOOTTIME))
    # Seconds since the epoch.
    wall: Callable[[], float] = time.time
    # Waits; a worker only.
    sleep: Callable[[float], None] = time.sleep


def rfc3339(wall_s: float) -> str:
    """Write a time, seconds since the epoch, as a snapshot has it: "2026-01-02T03:04:05.678Z"."""
    return datetime.fromtimestamp(wall_s, tz=timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host as its collectors see it."""

    root: Path = Path("/")
    clock: Clock = Clock()
    # Where the agent keeps snapshots and caches; empty where it keeps none.
    state_dir: str = ""
    # Socket of the helper that opens kernel stacks (`host.kernel_stacks`); empty where there is none.
    kernel_stacks: str = ""
    # Descriptor of a socket on which the recorder can be asked (`host.recorder`); None = there is no recorder now.
    recorder: int | None = None

    def proc(self, *parts: str | int) -> str:
        """Path below /proc, as text: `proc(4711, "stat")`."""
        return "/".join((str(self.root / "proc"), *map(str, parts)))
