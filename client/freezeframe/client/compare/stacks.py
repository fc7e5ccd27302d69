"""Stacks of threads and tasks of the processes that are in both snapshots.

The last stack of the older one is held against the first of the newer one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from freezeframe.client.compare.model import StackChange, StackCounts
from freezeframe.client.compare.side import KINDS, Side
from freezeframe.client.render import units

STACKS = ("python", "native", "asyncio")
_STATES = ("same", "changed", "gone", "new", "unclear")


def compare(before: Side, after: Side) -> tuple[StackChange, ...]:
    """Compare the stacks of two snapshots of one boot; unchanged ones are "same"."""
    return tuple(change for kind in STACKS for change in _kind(kind, before, after))


def count(changes: Iterable[StackChange]) -> tuple[StackCounts, ...]:
    """Count by kind and process, in their order."""
    counts: dict[tuple[str, int], dict[str, int]] = {}
    for change in changes:
        of_process = counts.setdefault((change.kind, change.pid), dict.fromkeys(_STATES, 0))
        of_process[change.state] += 1
    return tuple(StackCounts(kind=kind, pid=pid, **states) for (kind, pid), states in counts.items())


def _kind(kind: str, before: Side, after: Side) -> Iterable[StackChange]:
    older, newer = _records(kind, before, after), _records(kind, after, before)
    for key in dict.fromkeys((*older, *newer)):
        first, second = older.get(key), newer.get(key)
        if first is not None and second is not None:
            old, new = _frames(kind, first, last=True), _frames(kind, second, last=False)
            if old == new:
                state = "same"
            else:
                # A stack that is doubted, or could not be read, proves no movement.
                state = "unclear" if first.doubt or second.doubt or not (old and new) else "changed"
            yield _change(state, kind, second, old, new)
        elif first is not None:
            state = "unclear" if after.unseen(kind, first.pid) else "gone"
            yield _change(state, kind, first, _frames(kind, first, last=True), ())
        elif second is not None:
            state = "unclear" if before.unseen(kind, second.pid) else "new"
            yield _change(state, kind, second, (), _frames(kind, second, last=False))


def _records(kind: str, own: Side, other: Side) -> dict[tuple[object, ...], Any]:
    """Records of processes that are in both: a process that came or went is told as a process."""
    found = {}
    for record in getattr(own.snapshot, KINDS[kind][0]):
        program = own.program(record.pid)
        if record.pid in own.processes and record.pid in other.processes and program == other.program(record.pid):
            found[program + _identity(kind, record)] = record
    return found


def _identity(kind: str, record: Any) -> tuple[object, ...]:
    if kind == "asyncio":
        return (record.address, record.coroutine, record.name)
    return (record.tid or record.name,)


def _frames(kind: str, record: Any, *, last: bool) -> tuple[str, ...]:
    frames = record.frames
    if last and kind != "native" and record.HasField("same_at_second_look") and not record.same_at_second_look:
        frames = record.frames_after
    return tuple(_SPELL[kind](frame) for frame in frames)


def _source(frame: Any) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})"


def _native(frame: Any) -> str:
    return f"{frame.function or '?'} ({frame.module}+{units.address(frame.offset)})"


_SPELL: dict[str, Callable[[Any], str]] = {"python": _source, "asyncio": _source, "native": _native}


def _change(state: str, kind: str, record: Any, old: tuple[str, ...], new: tuple[str, ...]) -> StackChange:
    return StackChange(
        state=state,
        kind=kind,
        pid=record.pid,
        tid=record.tid if kind != "asyncio" else None,
        name=record.name,
        frames_before=old,
        frames_after=new,
    )
