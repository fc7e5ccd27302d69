"""Stacks of Python, asyncio and native threads; locks. Equal stacks of one process are shown once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Column, Table
from freezeframe.client.render.merged import merge
from freezeframe.client.render.sections import traces
from freezeframe.client.render.sections.contract import Snapshot
from freezeframe.client.render.sections.folding import WAITS, Shown, fold, fold_ranks
from freezeframe.client.render.values import NOTHING, optional
from freezeframe.v1 import stack_pb2, verdict_pb2

_NAMED = 4


def python(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show Python threads, innermost frame first; equal ones of the ranks of one engine together."""
    return fold_ranks(
        [
            Shown(
                pid=thread.pid,
                owner=_thread(thread.tid, thread.name),
                thread=thread.name,
                lines=(
                    _python_state(thread),
                    *_frames(thread.frames),
                    *((f"doubt: {thread.doubt}",) if thread.doubt else ()),
                    *_after(thread),
                ),
            )
            for thread in snapshot.python_threads
        ],
        snapshot,
    )


def asyncio(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show asyncio tasks, outermost coroutine first; of each process the largest group of equal ones first."""
    tasks = [
        Shown(
            pid=task.pid,
            owner=" ".join(filter(None, (task.name or "task", task.request_id))),
            thread="",
            lines=_task(task),
        )
        for task in snapshot.asyncio_tasks
    ]
    sizes = Counter((each.pid, each.lines) for each in tasks)
    order = {pid: number for number, pid in enumerate(dict.fromkeys(each.pid for each in tasks))}
    return fold(sorted(tasks, key=lambda each: (order[each.pid], -sizes[each.pid, each.lines])))


def _task(task: stack_pb2.AsyncioTask) -> tuple[str, ...]:
    said = [task.state or "state unknown"]
    if task.HasField("same_at_second_look"):
        said.append("same chain at both looks" if task.same_at_second_look else "chain changed between the looks")
    served = " ".join(filter(None, (task.method, task.path)))
    kinds = Counter(edge.kind for edge in task.waits_for)
    waits = ", ".join(f"{number} by {kind}" for kind, number in kinds.items())
    return (
        ", ".join(said),
        *((f"serves {served}",) if served else ()),
        *_frames(task.frames),
        *((f"awaits {' '.join(filter(None, (task.awaits_state, task.awaits)))}",) if task.awaits else ()),
        *((f"waits for other tasks: {waits}",) if waits else ()),
        *((f"doubt: {task.doubt}",) if task.doubt else ()),
        *(("at the second look:", *_frames(task.frames_after)) if task.frames_after else ()),
    )


def native(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show native threads, innermost frame first, the kernel's frames above, Python's in their place."""
    python_frames = {(thread.pid, thread.tid): thread.frames for thread in snapshot.python_threads if thread.tid}
    return fold_ranks(
        [
            Shown(
                pid=thread.pid,
                owner=_thread(thread.tid, thread.name),
                thread=thread.name,
                lines=(
                    *((f"{WAITS}{thread.wait}",) if thread.wait else ()),
                    *(f"[kernel] {frame}" for frame in thread.kernel_frames),
                    *_merged(thread.frames, python_frames.get((thread.pid, thread.tid), ())),
                    *((f"doubt: {thread.doubt}",) if thread.doubt else ()),
                    *_second_look(thread),
                ),
            )
            for thread in snapshot.native_threads
        ],
        snapshot,
    )


def _merged(native: Sequence[stack_pb2.NativeFrame], python: Sequence[stack_pb2.Frame]) -> tuple[str, ...]:
    """Frames of both, innermost first, those of Python marked."""
    return tuple(
        f"[python] {_frames((frame,))[0]}"
        if isinstance(frame, stack_pb2.Frame)
        else f"{frame.function or '?'}  {frame.module}+{units.address(frame.offset)}"
        for frame in merge(native, python)
    )


def _second_look(thread: stack_pb2.NativeThread) -> tuple[str, ...]:
    if not thread.HasField("same_at_second_look"):
        return ()
    return ("same stack at both looks" if thread.same_at_second_look else "stack changed between the looks",)


def locks(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show each lock or other wait, who can end it and what that one does, and who waits."""
    if not snapshot.locks:
        return traces.futexes(snapshot)
    columns = (
        Column(title="PID", right=True),
        Column(title="KIND"),
        Column(title="WHAT"),
        Column(title="OWNER"),
        Column(title="WHO NOW", flexible=True),
        Column(title="WAITERS (TID SINCE)", flexible=True),
    )
    rows = tuple(
        (
            str(lock.pid),
            lock.kind or NOTHING,
            lock.object or lock.address or NOTHING,
            _owner(lock),
            lock.owner_doing or NOTHING,
            ", ".join(_waiter(each) for each in lock.waiters) or NOTHING,
        )
        for lock in snapshot.locks
    )
    return (Table(columns=columns, rows=rows), *traces.futexes(snapshot))


def _owner(lock: stack_pb2.Lock) -> str:
    """Who can end a wait: "thread 4712", "thread 4712?" where that is not sure, "pid 812"."""
    sure = "" if lock.owner_confidence == verdict_pb2.Confidence.HIGH else "?"
    if lock.HasField("owner_tid"):
        return f"thread {lock.owner_tid}{sure}"
    if lock.HasField("owner_pid"):
        return f"pid {lock.owner_pid}{sure}"
    if lock.releaser_pids:
        return f"pids {', '.join(map(str, lock.releaser_pids[:_NAMED]))}{sure}"
    return NOTHING


def _waiter(waiter: stack_pb2.Waiter) -> str:
    said = f"{waiter.tid} {optional(waiter, 'since_ms', units.age)}"
    return said if waiter.endless else f"{said} (timed)" if waiter.operation else said


def _thread(tid: int, name: str) -> str:
    return f"thread {tid or '?'} {name}".rstrip()


def _python_state(thread: stack_pb2.PythonThread) -> str:
    said = ["active" if thread.active else "idle"]
    if thread.owns_gil:
        said.append("holds the interpreter lock")
    if thread.waits_for_gil:
        said.append("waits for the interpreter lock")
    if thread.HasField("same_at_second_look"):
        said.append("same stack at both looks" if thread.same_at_second_look else "stack changed between the looks")
    return ", ".join(said)


def _after(thread: stack_pb2.PythonThread) -> tuple[str, ...]:
    return ("at the second look:", *_frames(thread.frames_after)) if thread.frames_after else ()


def _frames(frames: Iterable[stack_pb2.Frame]) -> tuple[str, ...]:
    return tuple(f"{frame.function}  {frame.file}:{frame.line or '?'}" for frame in frames)
