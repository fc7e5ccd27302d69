"""Ways to know less than a snapshot does. Each gives a snapshot that a worse moment could have brought."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from freezeframe.judge.model import Host, Outcome, Snapshot

Mutation = Callable[[Snapshot], Snapshot]
Status = Outcome.Status

# What each collector brings. Processes stay known by pid and role: other looks find them, too.
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "snapshot_processes": (),
    "snapshot_sockets": ("sockets",),
    "snapshot_python_stacks": ("python_threads",),
    "snapshot_native_stacks": ("native_threads",),
    "snapshot_asyncio_tasks": ("asyncio_tasks",),
    "snapshot_locks": ("locks",),
    "snapshot_host": ("host",),
    "snapshot_gpus": ("gpus",),
    "sample_metrics": ("metrics", "endpoints"),
    "read_logs": ("log_findings", "log_sources", "log_requests"),
    "read_kernel_log": ("kernel_events",),
    "read_history": ("history",),
    "trace_requests": ("requests", "recorder"),
    "trace_futex": ("futex_waits", "futex_addresses"),
    "watch_edges": ("connection_events",),
}
_PROCESS_LOOKS: Mapping[str, Any] = {"state": "", "threads": (), "cpu_ms_delta": None}
_CUT = ("sockets", "requests", "python_threads", "native_threads", "asyncio_tasks", "metrics", "log_requests")
_STALE_MS = 120_000.0


def without(collector: str, status: Status = Status.TIMED_OUT) -> Mutation:
    """This collector brought nothing."""

    def mutate(snapshot: Snapshot) -> Snapshot:
        less = {name: _empty(getattr(snapshot, name)) for name in SECTIONS[collector]}
        if collector == "snapshot_processes":
            less["processes"] = tuple(replace(p, **_PROCESS_LOOKS) for p in snapshot.processes)
        return replace(_with_outcome(snapshot, collector, status), **less)

    return mutate


def cut(section: str) -> Mutation:
    """Of this section only the first half came, and its collector says so."""
    (collector,) = (name for name, brought in SECTIONS.items() if section in brought)

    def mutate(snapshot: Snapshot) -> Snapshot:
        records = getattr(snapshot, section)
        return replace(
            _with_outcome(snapshot, collector, Status.PARTIAL), **{section: records[: (len(records) + 1) // 2]}
        )

    return mutate


def with_stale_gauges(snapshot: Snapshot) -> Snapshot:
    """Every gauge was written two minutes earlier."""
    return replace(
        snapshot, metrics=tuple(replace(m, age_ms=(m.age_ms or 0.0) + _STALE_MS, delta=None) for m in snapshot.metrics)
    )


def with_one_look(snapshot: Snapshot) -> Snapshot:
    """As `snap --window 0` brings it: nothing that takes two looks."""
    assert snapshot.meta is not None
    one: Snapshot = _one_look(snapshot)
    return replace(one, meta=replace(snapshot.meta, window_ms=0.0))


def mutations(snapshot: Snapshot) -> dict[str, Mutation]:
    """All that change this snapshot, by name."""
    found: dict[str, Mutation] = {f"without {name}": without(name) for name in SECTIONS if _ran(snapshot, name)}
    found |= {f"half of {section}": cut(section) for section in _CUT if len(getattr(snapshot, section)) > 1}
    if snapshot.metrics:
        found["stale gauges"] = with_stale_gauges
    if snapshot.meta is not None and snapshot.meta.window_ms:
        found["one look"] = with_one_look
    return found


def _ran(snapshot: Snapshot, collector: str) -> bool:
    return any(o.collector == collector and o.status in {Status.OK, Status.PARTIAL} for o in snapshot.outcomes)


def _empty(value: Any) -> Any:
    return Host() if isinstance(value, Host) else () if isinstance(value, tuple) else None


def _with_outcome(snapshot: Snapshot, collector: str, status: Status) -> Snapshot:
    outcomes = tuple(
        replace(o, status=status, detail="looking", hint="") if o.collector == collector else o
        for o in snapshot.outcomes
    )
    return replace(snapshot, outcomes=outcomes)


def _one_look(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_one_look(each) for each in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {}
    for field in fields(value):
        old = getattr(value, field.name)
        if field.name.endswith(("_delta", "_after", "delta", "at_second_look")):
            new = "" if isinstance(old, str) else None
        else:
            new = _one_look(old)
        if new is not old:
            changed[field.name] = new
    return replace(value, **changed) if changed else value
