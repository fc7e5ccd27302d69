"""What the workers of one capture have brought so far, merged by identity.

Pure. A record may come twice: the later one wins whole, but for a process, of which several collectors each know a
part: there a later record only overlays what it knows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import MISSING, fields, replace
from typing import Any

from freezeframe.judge.model import Outcome, Process, Snapshot

# Records of a kind that is not listed are kept as they come.
IDENTITY: dict[str, Callable[[Any], Hashable]] = {
    "processes": lambda process: process.pid,
    # A connection gets its inode when it is accepted, which may be between the looks.
    "sockets": lambda socket: (
        socket.netns,
        socket.family,
        socket.local,
        socket.remote,
        0 if socket.family == "tcp" and socket.remote else socket.inode,
    ),
    "python_threads": lambda thread: (thread.pid, thread.tid, thread.name),
    "native_threads": lambda thread: (thread.pid, thread.tid),
    "profile": lambda thread: (thread.pid, thread.tid),
    "locks": lambda lock: (lock.pid, lock.kind, lock.address, lock.object),
    "asyncio_tasks": lambda task: (task.pid, task.address),
    "futex_waits": lambda wait: (wait.pid, wait.tid),
    "metrics": lambda metric: (metric.pid, metric.name, metric.labels, metric.source),
    "endpoints": lambda endpoint: (endpoint.pid, endpoint.address, endpoint.path),
    "debug_traces": lambda trace: (trace.pid, trace.kind, trace.path),
    "log_findings": lambda finding: (finding.pid, finding.pattern),
    "log_sources": lambda source: (source.pid, source.kind, source.name),
    "log_requests": lambda request: (request.pid, request.request_id),
}

# Records that belong to one process, dropped when it ended before it was looked at whole.
_OF_ONE_PROCESS = (
    "sockets",
    "requests",
    "futex_waits",
    "futex_addresses",
    "python_threads",
    "native_threads",
    "profile",
    "locks",
    "asyncio_tasks",
    "metrics",
    "endpoints",
    "debug_traces",
)

_SEVERITY = (
    Outcome.Status.UNSPECIFIED,
    Outcome.Status.SKIPPED,
    Outcome.Status.OK,
    Outcome.Status.UNAVAILABLE,
    Outcome.Status.PARTIAL,
    Outcome.Status.TIMED_OUT,
    Outcome.Status.FAILED,
)


class Gathered:
    """Collects parts; `snapshot` gives what is there."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._kinds: dict[str, dict[Hashable, Any]] = {}
        self._single: dict[str, Any] = {}

    def add(self, part: Snapshot) -> None:
        """Merge one part."""
        for field in fields(part):
            value = getattr(part, field.name)
            if value is None or value == ():
                continue
            if not isinstance(value, tuple):
                self._single[field.name] = value
                continue
            kept = self._kinds.setdefault(field.name, {})
            identity = IDENTITY.get(field.name)
            for record in value:
                key = identity(record) if identity is not None else len(kept)
                old = kept.get(key)
                kept[key] = overlay(old, record) if isinstance(old, Process) else record

    def records(self, kind: str) -> tuple[Any, ...]:
        """All records of one kind, in the order in which they first came."""
        return tuple(self._kinds.get(kind, {}).values())

    def snapshot(self, *, ended: Iterable[int] = ()) -> Snapshot:
        """Everything, less what belongs to processes that ended meanwhile; these stay, marked `exited`."""
        gone = frozenset(ended)
        values: dict[str, Any] = {kind: tuple(records.values()) for kind, records in self._kinds.items()}
        if gone:
            for kind in _OF_ONE_PROCESS:
                values[kind] = tuple(record for record in values.get(kind, ()) if record.pid not in gone)
            values["processes"] = tuple(
                replace(process, exited=True) if process.pid in gone else process
                for process in values.get("processes", ())
            )
        return Snapshot(**self._single, **values)


def overlay(old: Process, new: Process) -> Process:
    """`old` with every field that `new` knows, that is, that differs from its default."""
    if old.start_ticks and new.start_ticks and old.start_ticks != new.start_ticks:
        return new  # the pid was reused: nothing of the old process is true of the new one
    known = {
        field.name: value
        for field in fields(new)
        if (value := getattr(new, field.name)) != (field.default if field.default is not MISSING else None)
    }
    return replace(old, **known)


def merge_outcomes(collector: str, outcomes: Iterable[Outcome]) -> Outcome:
    """One outcome of several runs of one collector: the worst status, all that was said."""
    several = tuple(outcomes)
    worst = max(several, key=lambda outcome: _SEVERITY.index(outcome.status))
    told = tuple(outcome for outcome in several if outcome.status is not Outcome.Status.SKIPPED) or several
    return Outcome(
        collector=collector,
        status=worst.status,
        detail="; ".join(dict.fromkeys(outcome.detail for outcome in told if outcome.detail)),
        hint="; ".join(dict.fromkeys(outcome.hint for outcome in told if outcome.hint)),
        duration_ms=max(outcome.duration_ms for outcome in several),
        items=sum(outcome.items for outcome in several),
        pids_missed=tuple(dict.fromkeys(pid for outcome in several for pid in outcome.pids_missed)),
    )
