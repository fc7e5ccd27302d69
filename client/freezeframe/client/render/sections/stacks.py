"""Stacks of Python, asyncio and native threads; locks; ranks. Equal stacks of one process are shown once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Column, Lines, Table
from freezeframe.client.render.sections.contract import Snapshot
from freezeframe.client.render.values import NOTHING, optional, pid
from freezeframe.v1 import stack_pb2

_NAMED = 4


def python(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show Python threads, innermost frame first."""
    return _folded(
        (
            thread.pid,
            _thread(thread.tid, thread.name),
            (_python_state(thread), *_frames(thread.frames), *_after(thread)),
        )
        for thread in snapshot.python_threads
    )


def asyncio(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show asyncio tasks, outermost coroutine first."""
    return _folded(
        (
            task.pid,
            task.name or "task",
            (
                f"{task.state or 'state unknown'}",
                *_frames(task.frames),
                *((f"awaits {task.awaits}",) if task.awaits else ()),
            ),
        )
        for task in snapshot.asyncio_tasks
    )


def native(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show native threads, innermost frame first, the kernel's frames above."""
    return _folded(
        (
            thread.pid,
            _thread(thread.tid, thread.name),
            (
                *(f"[kernel] {frame}" for frame in thread.kernel_frames),
                *(f"{frame.function or '?'}  {frame.module}+{units.address(frame.offset)}" for frame in thread.frames),
                *((f"doubt: {thread.doubt}",) if thread.doubt else ()),
            ),
        )
        for thread in snapshot.native_threads
    )


def locks(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show each lock, its owner and who waits."""
    if not snapshot.locks:
        return ()
    columns = (
        Column(title="PID", right=True),
        Column(title="KIND"),
        Column(title="ADDRESS"),
        Column(title="OWNER", right=True),
        Column(title="WAITERS (TID SINCE)", flexible=True),
    )
    rows = tuple(
        (
            str(lock.pid),
            lock.kind or NOTHING,
            lock.address,
            pid(lock, "owner_tid"),
            ", ".join(f"{each.tid} {optional(each, 'since_ms', units.age)}" for each in lock.waiters) or NOTHING,
        )
        for lock in snapshot.locks
    )
    return (Table(columns=columns, rows=rows),)


def ranks(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show where each rank stands; the minority is the suspect."""
    if not snapshot.ranks:
        return ()
    columns = (
        Column(title="RANK"),
        Column(title="PID", right=True),
        Column(title="GROUP", right=True),
        Column(title="STANDS IN", flexible=True),
        Column(title="NOTE"),
    )
    rows = tuple(
        (each.rank or NOTHING, str(each.pid), str(each.group), each.frame, "minority" if each.minority else "")
        for each in snapshot.ranks
    )
    return (Table(columns=columns, rows=rows),)


def _folded(stacks: Iterable[tuple[int, str, tuple[str, ...]]]) -> tuple[Block, ...]:
    """One block per process and stack, in order of appearance, with the names of all that share it."""
    groups: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    for owner, name, lines in stacks:
        groups.setdefault((owner, lines), []).append(name)
    return tuple(Lines(title=f"pid {owner}, {_names(names)}", lines=lines) for (owner, lines), names in groups.items())


def _names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    if len(names) == 1:
        return shown
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{len(names)} with the same stack: {shown}{more}"


def _thread(tid: int, name: str) -> str:
    return f"thread {tid or '?'} {name}".rstrip()


def _python_state(thread: stack_pb2.PythonThread) -> str:
    said = ["active" if thread.active else "idle"]
    if thread.owns_gil:
        said.append("holds the interpreter lock")
    if thread.HasField("same_at_second_look"):
        said.append("same stack at both looks" if thread.same_at_second_look else "stack changed between the looks")
    return ", ".join(said)


def _after(thread: stack_pb2.PythonThread) -> tuple[str, ...]:
    return ("at the second look:", *_frames(thread.frames_after)) if thread.frames_after else ()


def _frames(frames: Iterable[stack_pb2.Frame]) -> tuple[str, ...]:
    return tuple(f"{frame.function}  {frame.file}:{frame.line or '?'}" for frame in frames)
