"""asyncio locks: which one a task waits for, and which ones it has.

A task inside `async with lock` has the lock's `__aexit__`, bound to it (from 3.14 on the lock itself), on the value
stack of the frame that entered. One that waits is in `Lock.acquire`. A lock that was taken by a bare `acquire()` is on
no stack: its owner cannot be told.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from freezeframe.agentd.host.cpython.frames import Codes
from freezeframe.agentd.host.cpython.objects import Objects
from freezeframe.agentd.host.cpython.tasks import FoundTask, TaskFrame
from freezeframe.agentd.host.target_memory import UnreadableMemoryError

_FILE = "asyncio/locks.py"
_WORD = struct.Struct("<Q")
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
    candidates = [task for task in tasks if not task.doubt and _may_have_locks(task.frames)]
    search = _Search(objects, codes)
    search.read_ahead(candidates)
    for task in candidates:
        try:
            locks = search.of(task)
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


def _in_acquire(frame: TaskFrame) -> bool:
    return frame.code.name == "acquire" and frame.place.file.endswith(_FILE)


class _Search:
    def __init__(self, objects: Objects, codes: Codes) -> None:
        self._objects = objects
        self._codes = codes
        # Whether a lock is taken: many may wait for one.
        self._taken: dict[int, bool] = {}

    def read_ahead(self, tasks: Sequence[FoundTask]) -> None:
        """Read frames, what lies on their value stacks, and what that leads to, with a call for each."""
        memory = self._objects.memory
        frames = [frame for task in tasks for frame in task.frames[-_MAX_FRAMES:] if frame.values > 1]
        memory.read_many([(frame.address, 8) for frame in frames])
        values: list[int] = []
        for frame in frames:
            with suppress(UnreadableMemoryError, struct.error):
                values += self._values(frame)
        heads = memory.read_many([(value, _METHOD_SELF + 8) for value in values])
        memory.read_many([(_WORD.unpack_from(head, _METHOD_SELF)[0], 32) for head in heads if head is not None])

    def of(self, task: FoundTask) -> TaskLocks:
        objects = self._objects
        frames = task.frames[-_MAX_FRAMES:]
        wanted = self._wanted(frames[-1])
        entered: dict[int, int] = {}
        timed = any(frame.code.name in _TIMED for frame in frames)
        for frame in frames:
            if frame.values <= 1:  # nothing but what it awaits
                continue
            for value in self._values(frame):
                kind, of = objects.type_of(value).name, value
                if kind == "method":
                    of = objects.memory.word(value + _METHOD_SELF)
                    kind = objects.type_of(of).name
                if kind == "Lock" and self._is_taken(of):
                    entered[of] = entered.get(of, 0) + 1
                timed = timed or kind in _TIMEOUTS
        if wanted and len(frames) > 1 and frames[-2].code.name == "__aenter__":
            # On its way into the block it has the exit on its stack already.
            entered[wanted] = entered.get(wanted, 0) - 1
        holds = tuple(lock for lock, count in entered.items() if count > 0)
        return TaskLocks(waits_for=wanted, holds=holds, timed=timed)

    def _wanted(self, innermost: TaskFrame) -> int:
        if not _in_acquire(innermost):
            return 0
        lock = self._codes.local(innermost.address, innermost.code, "self").get("self", 0)
        return lock if lock and self._objects.type_of(lock).name == "Lock" and self._is_taken(lock) else 0

    def _is_taken(self, lock: int) -> bool:
        taken = self._taken.get(lock)
        if taken is None:
            attributes = self._objects.attributes(lock)
            locked = attributes.get("_locked", 0)
            taken = bool(locked) and "_waiters" in attributes and self._objects.integer(locked) == 1
            self._taken[lock] = taken
        return taken

    def _values(self, frame: TaskFrame) -> list[int]:
        """Objects on the value stack of a suspended frame, the lowest first, without the one that it awaits."""
        start, count = self._codes.value_stack(frame.address, frame.code)
        data = self._objects.memory.read(start, 8 * min(count - 1, _MAX_VALUES)) if count > 1 else b""
        words = struct.unpack(f"<{len(data) // 8}Q", data)
        return [word & ~_TAGS for word in words if word & ~_TAGS]
