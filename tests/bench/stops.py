"""Who was stopped or traced, and who called ptrace: seen by the kernel's own tracing, not by the tool under test."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_TRACING = Path("/sys/kernel/tracing")
# A thread leaves the processor as stopped (4) or traced (8); somebody attaches.
_EVENTS = {
    "sched/sched_switch": "prev_state & 12",
    "syscalls/sys_enter_ptrace": "",
}
_STOPPED = re.compile(r"\s(?P<at>\d+\.\d+): sched_switch: .*?prev_pid=(?P<tid>\d+) ")
_SWITCH = re.compile(
    r"\s(?P<at>\d+\.\d+): sched_switch: .*?prev_pid=(?P<tid>\d+) "
    r".*?prev_state=(?P<state>\S+) ==> .*?next_pid=(?P<next>\d+)"
)
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


@dataclass(frozen=True)
class PauseMeter:
    instance: Path

    def longest_ms(self) -> float:
        """How long the thread was held that was held longest, all times together, milliseconds."""
        held: dict[str, float] = {}
        since: dict[str, float] = {}
        for each in _SWITCH.finditer((self.instance / "trace").read_text()):
            at = float(each["at"])
            if each["next"] in since:
                held[each["next"]] = held.get(each["next"], 0.0) + at - since.pop(each["next"])
            if each["state"] in {"T", "t"}:
                since[each["tid"]] = at
        return 1000.0 * max(held.values(), default=0.0)

    def clear(self) -> None:
        (self.instance / "trace").write_text("")


@contextlib.contextmanager
def stop_meter() -> Iterator[Meter]:
    """Watch the whole machine; needs("kernel")."""
    with _tracing("stops", _EVENTS) as instance:
        yield Meter(instance)


@contextlib.contextmanager
def pause_meter(tids: Iterable[int]) -> Iterator[PauseMeter]:
    """Watch these threads: from when each is stopped or traced until it runs again; needs("kernel")."""
    with _tracing("pauses", {"sched/sched_switch": ""}, tids) as instance:
        yield PauseMeter(instance)


@contextlib.contextmanager
def _tracing(name: str, events: Mapping[str, str], tids: Iterable[int] = ()) -> Iterator[Path]:
    """An instance of the kernel's tracing with some events, each with a condition, of some threads, else of all."""
    if not (_TRACING / "instances").is_dir():
        os.system(f"mount -t tracefs tracefs {_TRACING}")
    instance = _TRACING / "instances" / f"freezeframe-bench-{name}-{os.getpid()}"
    instance.mkdir()
    try:
        (instance / "trace_clock").write_text("mono")
        (instance / "buffer_size_kb").write_text("16384")
        (instance / "set_event_pid").write_text(" ".join(map(str, tids)))
        for event, condition in events.items():
            if condition:
                (instance / "events" / event / "filter").write_text(condition)
            (instance / "events" / event / "enable").write_text("1")
        yield instance
        for event in events:
            (instance / "events" / event / "enable").write_text("0")
    finally:
        instance.rmdir()
