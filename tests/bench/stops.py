"""Who was stopped or traced, and who called ptrace: seen by the kernel's own tracing, not by the tool under test."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TRACING = Path("/sys/kernel/tracing")
# A thread leaves the processor as stopped (4) or traced (8); somebody attaches.
_EVENTS = {
    "sched/sched_switch": "prev_state & 12",
    "syscalls/sys_enter_ptrace": "",
}
_STOPPED = re.compile(r"\s(?P<at>\d+\.\d+): sched_switch: .*?prev_pid=(?P<tid>\d+) ")
_PTRACE = re.compile(r"-(?P<tid>\d+)\s+\[\d+\] .*?\s(?P<at>\d+\.\d+): sys_ptrace\(")


@dataclass(frozen=True, kw_only=True)
class Event:
    # CLOCK_MONOTONIC, seconds.
    at: float
    # The thread that was stopped, or the one that called ptrace.
    tid: int


@dataclass(frozen=True)
class Meter:
    instance: Path

    def stopped(self) -> list[Event]:
        """Every time that a thread was switched out as stopped or traced."""
        return self._read(_STOPPED)

    def ptraced(self) -> list[Event]:
        """Every call of ptrace."""
        return self._read(_PTRACE)

    def _read(self, pattern: re.Pattern[str]) -> list[Event]:
        found = pattern.finditer((self.instance / "trace").read_text())
        return [Event(at=float(each["at"]), tid=int(each["tid"])) for each in found]


@contextlib.contextmanager
def stop_meter() -> Iterator[Meter]:
    """Watch the whole machine; needs("kernel")."""
    if not (_TRACING / "instances").is_dir():
        os.system(f"mount -t tracefs tracefs {_TRACING}")
    instance = _TRACING / "instances" / f"freezeframe-bench-{os.getpid()}"
    instance.mkdir()
    try:
        (instance / "trace_clock").write_text("mono")
        (instance / "buffer_size_kb").write_text("16384")
        for event, condition in _EVENTS.items():
            if condition:
                (instance / "events" / event / "filter").write_text(condition)
            (instance / "events" / event / "enable").write_text("1")
        yield Meter(instance)
        for event in _EVENTS:
            (instance / "events" / event / "enable").write_text("0")
    finally:
        instance.rmdir()
