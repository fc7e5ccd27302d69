"""One look at the asyncio tasks of a process: chains, edges, what they serve, whose loop they are of."""

from __future__ import annotations

import contextlib
import gc
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from freezeframe.agentd.host.cpython.edges import Edge, find_edges
from freezeframe.agentd.host.cpython.interpreter import Interpreter
from freezeframe.agentd.host.cpython.locks import TaskLocks, anybody_waits, find_locks
from freezeframe.agentd.host.cpython.serving import Served, find_served, inherit
from freezeframe.agentd.host.cpython.stacks import walk_thread
from freezeframe.agentd.host.cpython.task_set import TaskSet
from freezeframe.agentd.host.cpython.tasks import FoundTask, TaskFrame, TaskWalker
from freezeframe.agentd.host.cpython.threads import PythonState, StackWalker, gil_of, threads_of
from freezeframe.agentd.host.target_memory import PagedMemory, UnreadableMemoryError

# Of a loop in C the words that are looked at for its thread.
_MAX_LOOP_WORDS = 512
_MAX_LOOPS = 256
_MAX_STACK = 1000
_AT_WORK = "it is at work: only its outermost frame is known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What one look found; the mappings are by the address of a task."""

    tasks: Sequence[FoundTask]
    # All that there are, also those beyond the limit.
    total: int
    edges: Mapping[int, Sequence[Edge]]
    served: Mapping[int, Served]
    locks: Mapping[int, TaskLocks]
    # Thread that runs a loop, by the loop's address.
    loops: Mapping[int, PythonState]


def look(interpreter: Interpreter, directory: str, machine: str, tids: Mapping[int, int] | None, *, limit: int) -> Look:
    """Look once, at `limit` tasks at most; `tids` as in `stacks.walk_threads`.

    Raises NoAsyncioError, UnsupportedPythonError, TargetMemoryError, OSError.
    """
    with _no_collections():
        return _look(interpreter, directory, machine, tids, limit)


@contextlib.contextmanager
def _no_collections() -> Iterator[None]:
    """Look for no cycles among the many small objects that a look makes: a quarter of its time, and there are none."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _look(interpreter: Interpreter, directory: str, machine: str, tids: Mapping[int, int] | None, limit: int) -> Look:
    walker = TaskWalker(interpreter, TaskSet(interpreter, directory))
    edges: dict[int, Sequence[Edge]] = {}
    served: dict[int, Served] = {}
    addresses: set[int] = set()

    def examine(tasks: Sequence[FoundTask]) -> None:
        objects = interpreter.objects.over(PagedMemory(interpreter.memory))
        codes = walker.codes.over(objects)
        addresses.update(task.address for task in tasks)
        for task in tasks:  # one that is given again
            edges.pop(task.address, None)
            served.pop(task.address, None)
        edges.update(find_edges(tasks, objects, codes, addresses))
        served.update(find_served(tasks, objects, codes))

    tasks, total = walker.walk(limit, examine)
    loops = _loops(interpreter, tasks)
    _complete(interpreter, walker, tasks, loops, directory, machine, tids)
    sound = {task.address for task in tasks if not task.doubt}
    # A parent's children are of its own moment: those that are not there any more are no edges.
    kept = {
        parent: [(child, kind) for child, kind in children if child in sound]
        for parent, children in edges.items()
        if parent in sound
    }
    mine = {address: each for address, each in served.items() if address in sound}
    return Look(
        tasks=tasks,
        total=total,
        edges=kept,
        served=_inherited(mine, kept),
        locks=_locks(interpreter, walker, tasks),
        loops=loops,
    )


def _locks(interpreter: Interpreter, walker: TaskWalker, tasks: Sequence[FoundTask]) -> dict[int, TaskLocks]:
    """Locks of all tasks at once, as an owner's are asked for only where another one waits; read twice, to be sure."""
    if not anybody_waits(tasks):
        return {}

    def find(tasks: Sequence[FoundTask]) -> dict[int, TaskLocks]:
        objects = interpreter.objects.over(PagedMemory(interpreter.memory))
        return find_locks(tasks, objects, walker.codes.over(objects))

    first = find(tasks)
    again = find([task for task in tasks if task.address in first])
    return {address: each for address, each in first.items() if again.get(address) == each}


def _complete(
    interpreter: Interpreter,
    walker: TaskWalker,
    tasks: Sequence[FoundTask],
    loops: Mapping[int, PythonState],
    directory: str,
    machine: str,
    tids: Mapping[int, int] | None,
) -> None:
    """Take the inner frames of tasks at work from the stacks of their threads; a thread that goes on leaves a doubt."""
    stacks = StackWalker(interpreter, walker.codes)
    for task in tasks:
        if task.state != "running" or task.doubt or not task.frames:
            continue
        task.doubt = _AT_WORK
        thread = loops.get(task.loop)
        if thread is None:
            continue
        walked = walk_thread(stacks, thread, gil_of(interpreter), directory, machine, tids, frames=_MAX_STACK)
        depths = [depth for depth, frame in enumerate(walked.frames) if frame.address == task.frames[0].address]
        if len(depths) == 1 and not walked.doubt:
            inner = reversed(walked.frames[: depths[0] + 1])
            task.frames = [TaskFrame(each.place, each.code, each.address, 0) for each in inner]
            task.doubt = ""


def _inherited(served: Mapping[int, Served], edges: Mapping[int, Sequence[Edge]]) -> dict[int, Served]:
    """What a task serves, those that it alone waits for serve too."""
    parents: dict[int, list[int]] = {}
    for parent, children in edges.items():
        for child, _ in children:
            parents.setdefault(child, []).append(parent)
    found = dict(served)
    waiting = list(served)
    while waiting:
        parent = waiting.pop()
        for child, _ in edges.get(parent, ()):
            if len(parents[child]) != 1:
                continue
            whole = inherit(found[child], found[parent]) if child in found else found[parent]
            if found.get(child) != whole:
                found[child] = whole
                waiting.append(child)
    return found


def _loops(interpreter: Interpreter, tasks: Sequence[FoundTask]) -> dict[int, PythonState]:
    objects = interpreter.objects.over(PagedMemory(interpreter.memory))
    idents = {thread.ident: thread for thread in threads_of(interpreter, named=False) if thread.ident}
    found = {}
    for loop in list(dict.fromkeys(task.loop for task in tasks if not task.doubt))[:_MAX_LOOPS]:
        try:
            told = objects.attributes(loop).get("_thread_id")
            if told:
                thread = idents.get(objects.integer(told))
            else:  # uvloop's is a number in C
                count = min(_MAX_LOOP_WORDS, objects.type_of(loop).basicsize // 8)
                words = struct.unpack(f"<{count}Q", objects.memory.read(loop, 8 * count))
                thread = next((idents[word] for word in words if word in idents), None)
        except UnreadableMemoryError:
            continue
        if thread is not None:
            found[loop] = thread
    return found
