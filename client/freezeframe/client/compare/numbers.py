"""Gauges, counters and connections of the processes that are in both snapshots."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from freezeframe.client.compare.model import MetricChange, SocketChange
from freezeframe.client.compare.side import Side, is_another
from freezeframe.v1 import metric_pb2, socket_pb2

Socket = socket_pb2.Socket
_Key = tuple[int, float, str, tuple[tuple[str, str], ...]]


def metrics(before: Side, after: Side) -> tuple[dict[str, int], tuple[MetricChange, ...]]:
    """Counts by state, and the values that changed."""
    older, newer = _metrics(before, after), _metrics(after, before)
    counts = Counter[str]()
    changes = []
    for key in dict.fromkeys((*older, *newer)):
        first, second = older.get(key), newer.get(key)
        if first is None or second is None:
            own, other = (first, after) if first is not None else (second, before)
            unseen = own is not None and other.unseen("metrics", own.pid)
            counts["unclear" if unseen else "gone" if second is None else "new"] += 1
        elif first.value == second.value or (math.isnan(first.value) and math.isnan(second.value)):
            counts["same"] += 1
        else:
            counts["changed"] += 1
            changes.append(
                MetricChange(
                    name=second.name,
                    labels=dict(second.labels),
                    pid=second.pid,
                    before=first.value,
                    after=second.value,
                    change=second.value - first.value,
                    age_ms=second.age_ms if second.HasField("age_ms") else None,
                )
            )
    return _filled(counts, "same", "changed", "gone", "new", "unclear"), tuple(changes)


def sockets(before: Side, after: Side) -> tuple[dict[str, int], tuple[SocketChange, ...]]:
    """Counts by state, and the sockets that moved bytes, changed their state, came or went."""
    older, newer = before.sockets, after.sockets
    counts = Counter[str]()
    changes = []
    for key in dict.fromkeys((*older, *newer)):
        first, second = older.get(key), newer.get(key)
        if first is not None and second is not None and not is_another(first, second):
            change = _both(first, second)
            counts[change.state] += 1
            if change.state != "same":
                changes.append(change)
            continue
        for own, side, state in ((first, after, "gone"), (second, before, "new")):
            if own is not None:
                told = _single(own, side, state)
                counts[told.state] += 1
                changes.append(told)
    return _filled(counts, "same", "moved", "changed", "gone", "new", "unclear"), tuple(changes)


def _metrics(own: Side, other: Side) -> dict[_Key, metric_pb2.Metric]:
    return {
        (*own.program(each.pid), each.name, tuple(sorted(each.labels.items()))): each
        for each in own.snapshot.metrics
        if each.pid in own.processes
        and each.pid in other.processes
        and own.program(each.pid) == other.program(each.pid)
    }


def _both(first: Socket, second: Socket) -> SocketChange:
    grown = {field: _grown(first, second, field) for field in ("bytes_in", "bytes_out")}
    found = []
    if first.state != second.state:
        found.append(f"{first.state}, then {second.state}")
    if first.HasField("backlog") and second.HasField("backlog") and first.backlog != second.backlog:
        found.append(f"backlog {first.backlog}, then {second.backlog}")
    moved = any(grown.values())
    return _change(second, "moved" if moved else "changed" if found else "same", grown, tuple(found))


def _single(own: Socket, other: Side, state: str) -> SocketChange:
    # A socket without a process waits in an accept queue; either end would show it.
    ends = [pid for pid in (own.pid if own.HasField("pid") else None, own.peer_pid or None) if pid]
    reasons = [other.unseen("sockets", pid) for pid in ends] or [other.unseen("sockets")]
    return _change(own, "unclear" if all(reasons) else state, {}, ())


def _grown(first: Any, second: Any, field: str) -> float | None:
    if not (first.HasField(field) and second.HasField(field)):
        return None
    return float(getattr(second, field) - getattr(first, field))


def _change(own: Socket, state: str, grown: dict[str, float | None], changes: tuple[str, ...]) -> SocketChange:
    return SocketChange(
        state=state,
        local=own.local,
        remote=own.remote,
        pid=own.pid if own.HasField("pid") else None,
        peer_pid=own.peer_pid if own.HasField("peer_pid") else None,
        bytes_in=grown.get("bytes_in"),
        bytes_out=grown.get("bytes_out"),
        changes=changes,
    )


def _filled(counts: Counter[str], *states: str) -> dict[str, int]:
    return {state: counts[state] for state in states}
