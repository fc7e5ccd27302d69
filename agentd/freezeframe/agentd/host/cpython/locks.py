"""asyncio locks: which one a task waits for, and which ones it has.

A task inside `async with lock` has the lock's `__aexit__`, bound to it (from 3.14 on the lock itself), on the value
stack of the frame that entered. One that waits is in `Lock.acquire`. A lock that was taken by a bare `acquire()` is on
no stack: its owner cannot be told.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from freezeframe.agentd.host.cpython.frames import Codes
from freezeframe.agentd.host.cpython.objects import Objects
from freezeframe.agentd.host.cpython.tasks import FoundTask, TaskFrame
from freezeframe.agentd.host.target_memory import UnreadableMemoryError

_FILE = "asyncio/locks.py"
# PyMethodObject: function and self behind the object's head.
_METHOD_SELF = 24
# Values of one frame that are looked at.
_MAX_VALUES = 128
_MAX_FRAMES = 64
_TAGS = 3
# Whoever is inside one of these is let go after a while.
_TIMEOUTS = frozenset({"Timeout", "CancelScope"})
_TIMED = frozenset({"wait_for", "timeout", "fail_after", "move_on_after"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLocks:
    """Locks of one task, by address."""

    # 0 = none.
    waits_for: int = 0
    holds: tuple[int, ...] = ()
    # It waits under a timeout.
    timed: bool = False


def find_locks(tasks: Sequence[FoundTask], objects: Objects, codes: Codes) -> dict[int, TaskLocks]:
    """Give the locks of tasks that wait for one or have one, by the address of the task.

    `objects` reads what does not change meanwhile. Raises TargetMemoryError for what ends every read.
    """
    found: dict[int, TaskLocks] = {}
    for task in tasks:
        if task.doubt or not _may_have_locks(task.frames):
            continue
        try:
            locks = _of(task, objects, codes)
        except (UnreadableMemoryError, struct.error):
            continue
        if locks.waits_for or locks.holds:
            found[task.address] = locks
    return found


def anybody_waits(tasks: Sequence[FoundTask]) -> bool:
    """Tell whether a task is in `Lock.acquire`: where none is, nothing needs to be asked about locks."""
    return any(task.frames and _in_acquire(task.frames[-1]) for task in tasks)


def _may_have_locks(frames: Sequence[TaskFrame]) -> bool:
    """Whether it waits for one, or something lies on a value stack of it beside what is awaited."""
    return bool(frames) and (any(frame.values > 1 for frame in frames) or _in_acquire(frames[-1]))


def _of(task: FoundTask, objects: Objects, codes: Codes) -> TaskLocks:
    frames = task.frames[-_MAX_FRAMES:]
    wanted = _wanted(frames, objects, codes)
    entered: Counter[int] = Counter()
    timed = any(frame.place.function.rpartition(".")[2] in _TIMED for frame in frames)
    for frame in frames:
        if frame.values <= 1:  # nothing but what it awaits
            continue
        for value in _values(frame, objects, codes):
            kind, of = objects.type_of(value).name, value
            if kind == "method":
                of = objects.memory.word(value + _METHOD_SELF)
                kind = objects.type_of(of).name
            if kind == "Lock" and _is_locked(of, objects):
                entered[of] += 1
            timed = timed or kind in _TIMEOUTS
    if wanted and len(frames) > 1 and frames[-2].place.function.rpartition(".")[2] == "__aenter__":
        # On its way into the block it has the exit on its stack already.
        entered[wanted] -= 1
    return TaskLocks(waits_for=wanted, holds=tuple(lock for lock, count in entered.items() if count > 0), timed=timed)


def _wanted(frames: Sequence[TaskFrame], objects: Objects, codes: Codes) -> int:
    innermost = frames[-1]
    if not _in_acquire(innermost):
        return 0
    lock = codes.local(innermost.address, innermost.code, "self").get("self", 0)
    if not lock or objects.type_of(lock).name != "Lock" or not _is_locked(lock, objects):
        return 0
    return lock


def _in_acquire(frame: TaskFrame) -> bool:
    return frame.place.function.rpartition(".")[2] == "acquire" and frame.place.file.endswith(_FILE)


def _is_locked(lock: int, objects: Objects) -> bool:
    attributes = objects.attributes(lock)
    locked = attributes.get("_locked", 0)
    return bool(locked) and "_waiters" in attributes and objects.integer(locked) == 1


def _values(frame: TaskFrame, objects: Objects, codes: Codes) -> list[int]:
    """Objects on the value stack of a suspended frame, the lowest first, without the one that it awaits."""
    start, count = codes.value_stack(frame.address, frame.code)
    data = objects.memory.read(start, 8 * min(count - 1, _MAX_VALUES)) if count > 1 else b""
    words = struct.unpack(f"<{len(data) // 8}Q", data)
    return [word & ~_TAGS for word in words if word & ~_TAGS]
