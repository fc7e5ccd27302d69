"""What the threads ran while they were sampled: share of a core, the functions of their loop, what they waited in."""

from __future__ import annotations

from collections import Counter

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Column, Lines, Paragraph, Table
from freezeframe.client.render.sections.contract import Snapshot
from freezeframe.client.render.values import NOTHING
from freezeframe.v1 import profile_pb2

# Threads with their stacks spelled out, stacks of each, functions of each.
_THREADS, _STACKS, _FUNCTIONS = 20, 3, 8
# Threads in the table.
_ROWS = 100


def profile(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show the threads that used the CPU, most first."""
    if not snapshot.profile:
        return ()
    ranks = {rank.pid: rank.rank for rank in snapshot.ranks}
    threads = sorted(snapshot.profile, key=lambda thread: -_share(thread))
    first = threads[0]
    said = f"{units.age(first.duration_ms)} at {units.number(first.hz)} samples a second of CPU time."
    columns = (
        Column(title="PID", right=True),
        Column(title="TID", right=True),
        Column(title="NAME"),
        Column(title="CPU", right=True),
        Column(title="SAMPLES", right=True),
        Column(title="OFF THE CPU", flexible=True),
        Column(title="NOTE", flexible=True),
    )
    rows = tuple(
        (
            str(thread.pid),
            str(thread.tid),
            " ".join(filter(None, (thread.name, ranks.get(thread.pid, "")))) or NOTHING,
            _percent(_share(thread)),
            str(_samples(thread)),
            ", ".join(f"{wait.reason} {_percent(wait.share)}" for wait in thread.waits[:_STACKS]) or NOTHING,
            thread.doubt,
        )
        for thread in threads[:_ROWS]
    )
    table = Table(columns=columns, rows=rows)
    hot = [thread for thread in threads if thread.stacks][:_THREADS]
    return (Paragraph(text=said), table, *(block for thread in hot for block in _thread(thread)))


def _thread(thread: profile_pb2.ProfileThread) -> tuple[Block, ...]:
    total = _samples(thread) or 1
    inside: Counter[str] = Counter()
    for stack in thread.stacks:
        inside.update(dict.fromkeys(map(_place, stack.frames), stack.samples))
    whose = f"pid {thread.pid}, thread {thread.tid} {thread.name}".rstrip()
    functions = tuple(f"{_percent(n / total):>5}  {name}" for name, n in inside.most_common(_FUNCTIONS))
    stacks = tuple(
        Lines(
            title=f"{whose}: {_percent(stack.samples / total)} of its samples",
            lines=tuple(map(_frame, stack.frames)),
        )
        for stack in thread.stacks[:_STACKS]
    )
    return (Lines(title=f"{whose}: functions of its samples, callees included", lines=functions), *stacks)


def _samples(thread: profile_pb2.ProfileThread) -> int:
    return sum(stack.samples for stack in thread.stacks)


def _share(thread: profile_pb2.ProfileThread) -> float:
    return thread.cpu_ms / thread.duration_ms if thread.duration_ms else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _place(frame: profile_pb2.ProfileFrame) -> str:
    return f"{frame.function or '?'}  {frame.file}".rstrip()


def _frame(frame: profile_pb2.ProfileFrame) -> str:
    if frame.python:
        return f"[python] {frame.function}  {frame.file}:{frame.line or '?'}"
    return f"{frame.function or '?'}  {frame.file}"
