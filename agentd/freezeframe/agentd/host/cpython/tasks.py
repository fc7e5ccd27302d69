"""asyncio tasks of another process and their await chains, without stopping it.

Level by level over all tasks at once: tasks, their coroutines, what these await, and again. The target goes on running,
so every chain is read a second time, innermost frame first: what differs is walked again, and a task that never holds
still is told with a doubt. A chain without a doubt is one that the task had.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from freezeframe.agentd.host.cpython.frames import Code, Codes, Place
from freezeframe.agentd.host.cpython.interpreter import Interpreter
from freezeframe.agentd.host.cpython.objects import printable
from freezeframe.agentd.host.cpython.task_set import TaskSet
from freezeframe.agentd.host.target_memory import UnreadableMemoryError

# What is read of a coroutine at first: its frame with 30 slots.
_GENERATOR_BYTES = 448
_FRAME_310_BYTES = 112
_MAX_DEPTH = 250
_MAX_STACK = 4096
_TRIES = 4
_WORD = struct.Struct("<Q")
_INT = struct.Struct("<i")
_FUTURE_STATES = {0: "pending", 1: "cancelled", 2: "finished"}
# Frame states, 3.10 to 3.12: created, suspended, executing = -2, -1, 0. From 3.13 on: created, suspended, suspended
# while it awaits, executing = -3, -2, -1, 0.
_EXECUTING, _SUSPENDED, _CREATED_313 = 0, -1, -3
# Types, in C and of no exported name, that stand between a frame and what it awaits; their first member leads on.
_WRAPPERS = frozenset({"async_generator_asend", "async_generator_athrow", "coroutine_wrapper"})
_ITERATOR = "FutureIter"
_TAGS = 3
# The place of a frame of which too little could be read.
_NOWHERE = (0, 0)


@dataclass(slots=True, kw_only=True)
class _Stop:
    """A place at which frames stand, read once for all of them."""

    code: Code
    offset: int
    place: Place
    # Of locals.
    slots: int
    # Whether a frame that is suspended there awaits another object; absent until it is asked for.
    awaits: bool | None = None


@dataclass(slots=True)
class TaskFrame:
    """One suspended frame of a chain."""

    place: Place
    code: Code
    # Address of the frame, and of the coroutine or generator that owns it.
    address: int
    owner: int
    # Values on its stack, the awaited one included; 0 when it awaits nothing.
    values: int = 0


@dataclass(slots=True)
class FoundTask:
    """One task, as it was at some moment of the walk."""

    address: int
    type_address: int = 0
    name: str = ""
    # "running", "ready", "waiting", "not started", "finished".
    state: str = ""
    coroutine: int = 0
    loop: int = 0
    waiter: int = 0
    # Outermost first.
    frames: list[TaskFrame] = field(default_factory=list)
    # Type of the awaited object, its address (0 for none), and for a future its state.
    awaits: str = ""
    awaited: int = 0
    awaited_state: str = ""
    # Why it may not be right; empty when it is.
    doubt: str = ""
    # What was read, to be read again: address and bytes.
    seen: list[tuple[int, bytes]] = field(default_factory=list)
    # Whether its outermost frame is at work now.
    executing: bool = False
    created: bool = False
    future_state: int = 0


Examine = Callable[[Sequence[FoundTask]], None]


class TaskWalker:
    """Walks the tasks of one process."""

    def __init__(self, interpreter: Interpreter, task_set: TaskSet) -> None:
        """Read nothing yet."""
        self._objects = interpreter.objects
        self._memory = interpreter.memory
        self._layout = {**interpreter.layout, **task_set.layout}
        self._minor = interpreter.minor
        self._set = task_set
        self.codes = Codes(interpreter.objects)
        types = interpreter.objects.types
        self._generators = frozenset({types["coroutine"], types["generator"], types["async_generator"]})
        self._stops: dict[tuple[int, int], _Stop] = {}
        if self._minor >= 11:
            base = self._layout["generator.frame"]
            code, instruction = base + self._layout["frame.code"], base + self._layout["frame.instruction"]
            # Words of code and instruction of the frame in a coroutine.
            self._stopped = struct.Struct(f"<{code}xQ{instruction - code - 8}xQ")
        # Tasks whose chain had to be read again, of the last walk.
        self.moved = 0

    def walk(self, limit: int, examine: Examine = lambda _tasks: None) -> tuple[list[FoundTask], int]:
        """Find the tasks, `limit` at most, and the number of all. Raises TargetMemoryError.

        `examine` is given tasks after their chains were read and before these are checked: what it reads of a chain's
        frames is checked with them. A task may be given to it again.
        """
        found = self._set.addresses()
        tasks = self._walk(found[:limit], examine)
        self.moved = sum(bool(task.doubt) for task in tasks)
        for _ in range(_TRIES - 1):
            bad = {task.address for task in tasks if task.doubt}
            if not bad:
                break
            # What was made since is where something else was when its page was read.
            self._objects.lasting.forget()
            # One that ended meanwhile is no task any more.
            bad_still = bad & set(self._set.addresses())
            again = {task.address: task for task in self._walk(sorted(bad_still), examine)}
            tasks = [again.get(task.address, task) for task in tasks if task.address in again or not task.doubt]
        return tasks, len(found)

    def _walk(self, tasks: Sequence[int], examine: Examine) -> list[FoundTask]:
        found = self._heads(tasks)
        live = [(task, task.coroutine) for task in found if task.coroutine and not task.doubt]
        for _ in range(_MAX_DEPTH):
            if not live:
                break
            live = self._level(live)
        for task, _ in live:
            task.doubt = f"its await chain has more than {_MAX_DEPTH} frames"
        self._name_awaited(found)
        examine(found)
        self._check(found)
        for task in found:
            task.state = _state(task)
            task.seen.clear()
        return found

    def _heads(self, tasks: Sequence[int]) -> list[FoundTask]:
        layout, size = self._layout, self._layout["task.basicsize"]
        coroutine, name, loop, waiter = (layout[f"task.{key}"] for key in ("coroutine", "name", "loop", "waiter"))
        future_state = layout["future.state"]
        found: list[FoundTask] = []
        names: list[int] = []
        for address, data in zip(tasks, self._memory.read_many([(each, size) for each in tasks]), strict=True):
            task = FoundTask(address)
            if data is None:
                task.doubt = "its memory is not mapped any more"
            else:
                word = _WORD.unpack_from
                task.type_address = word(data, 8)[0]
                task.coroutine = word(data, coroutine)[0]
                task.loop = word(data, loop)[0]
                task.waiter = word(data, waiter)[0]
                (task.future_state,) = struct.unpack_from("<I", data, future_state)
                named = word(data, name)[0]
                if not named or not task.loop or task.future_state not in _FUTURE_STATES:
                    task.doubt = "it ended while it was read"
                else:
                    task.seen.append((address + 8, data[8:]))
                    names.append(named)
                    found.append(task)
                    continue
            found.append(task)
            names.append(0)
        self._name(found, names)
        return found

    def _name(self, found: Sequence[FoundTask], names: Sequence[int]) -> None:
        told = self._objects.strings([address if address and not address & 7 else 0 for address in names])
        kinds: dict[int, bool] = {}
        for task, address, name in zip(found, names, told, strict=True):
            if task.doubt:
                continue
            try:
                is_task = kinds.get(task.type_address)
                if is_task is None:
                    is_task = kinds[task.type_address] = self._set.is_task(task.type_address)
                if not is_task:
                    task.doubt = "it ended while it was read"
                    continue
                # 3.12 and later keep a number until the name is asked for.
                task.name = printable(name) if name is not None else f"Task-{self._objects.integer(address)}"
            except UnreadableMemoryError:
                task.doubt = "its name could not be read"

    def _level(self, live: Sequence[tuple[FoundTask, int]]) -> list[tuple[FoundTask, int]]:
        """Read one object of each chain; give those that lead on."""
        following: list[tuple[FoundTask, int]] = []
        frames: list[tuple[FoundTask, int, bytes]] = []
        for (task, address), whole in zip(
            live, self._memory.read_many([(address, _GENERATOR_BYTES) for _, address in live]), strict=True
        ):
            data = whole
            try:
                if data is None:
                    data = self._memory.read_up_to(address, _GENERATOR_BYTES)
                kind, first = struct.unpack_from("<QQ", data, 8)
                if kind in self._generators:
                    frames.append((task, address, data))
                    continue
                name = self._objects.type(kind).name
            except (UnreadableMemoryError, struct.error):
                task.doubt = "what it awaits could not be read"
                continue
            task.seen.append((address + 8, data[8:24]))
            if name in _WRAPPERS:
                following.append((task, first))
            elif name == _ITERATOR:
                task.awaited = first
            else:
                task.awaits, task.awaited = name, address
        tops = self._frames_310(frames) if self._minor == 10 else self._frames_311(frames)
        return following + tops

    def _frames_311(self, frames: Sequence[tuple[FoundTask, int, bytes]]) -> list[tuple[FoundTask, int]]:
        layout = self._layout
        base = layout["generator.frame"]
        state_at = layout["generator.state"]
        locals_at = base + layout["frame.locals"]
        following: list[tuple[FoundTask, int]] = []
        beyond: list[tuple[FoundTask, int]] = []
        stops, place_of = self._stops, self._stopped.unpack_from
        places = [place_of(data) if len(data) >= self._stopped.size else _NOWHERE for _, _, data in frames]
        self.codes.read_ahead(code & ~_TAGS for code, instruction in set(places) - stops.keys())
        for (task, address, data), place in zip(frames, places, strict=True):
            try:
                state = struct.unpack_from("<b", data, state_at)[0]
                if state > _EXECUTING:  # ended
                    task.seen.append((address + state_at, data[state_at : state_at + 1]))
                    continue
                stop = stops.get(place) or self._stop(place)
                frame = TaskFrame(stop.place, stop.code, address + base, address)
                task.frames.append(frame)
                if not self._waits(task, state, stop):
                    task.seen.append((address + 8, data[8:locals_at]))
                    continue
                count = self._count(address, data)
                frame.values = count - stop.slots
                end = locals_at + 8 * count
                if end <= len(data):
                    task.seen.append((address + 8, data[8:end]))
                    following.append((task, _WORD.unpack_from(data, end - 8)[0] & ~_TAGS))
                else:
                    task.seen.append((address + 8, data[8:locals_at]))
                    beyond.append((task, address + end - 8))
            except (UnreadableMemoryError, struct.error, IndexError):
                task.doubt = "a frame of it could not be read"
        return following + self._tops(beyond)

    def _stop(self, place: tuple[int, int]) -> _Stop:
        """Read the place that a frame is at: words of its code and of its instruction."""
        code = self.codes.code(place[0] & ~_TAGS)
        offset = self.codes.offset(code, place[1])
        stop = self._stops[place] = _Stop(
            code=code, offset=offset, place=self.codes.place(code, offset), slots=len(self.codes.names(code))
        )
        return stop

    def _waits(self, task: FoundTask, state: int, stop: _Stop) -> bool:
        """Tell whether a frame awaits something, and note what else it does."""
        if state == _EXECUTING:
            task.executing = True
            return False
        if self._minor >= 13:
            task.created = task.created or state == _CREATED_313
            return state == _SUSPENDED
        if state != _SUSPENDED:
            task.created = True
            return False
        if stop.awaits is None:
            stop.awaits = self.codes.awaits(stop.code, stop.offset)
        return stop.awaits

    def _count(self, address: int, data: bytes) -> int:
        """Slots of a frame that are in use: locals, and the values on its stack, of which there is one at least."""
        layout = self._layout
        at = layout["generator.frame"] + layout["frame.top"]
        if self._minor >= 14:
            start = address + layout["generator.frame"] + layout["frame.locals"]
            count: int = (_WORD.unpack_from(data, at)[0] - start) >> 3
        else:
            (count,) = _INT.unpack_from(data, at)
        if not 0 < count < _MAX_STACK:
            raise UnreadableMemoryError(f"the frame at {address:#x} has {count} values")
        return count

    def _frames_310(self, frames: Sequence[tuple[FoundTask, int, bytes]]) -> list[tuple[FoundTask, int]]:
        layout = self._layout
        at = layout["generator.frame"]
        wanted: list[tuple[FoundTask, int, int]] = []
        for task, address, data in frames:
            (frame,) = _WORD.unpack_from(data, at)
            task.seen.append((address + 8, data[8 : at + 8]))
            if frame:
                wanted.append((task, address, frame))
        beyond: list[tuple[FoundTask, int]] = []
        size = max(_FRAME_310_BYTES, layout["frame.state"] + 1)
        blocks = self._memory.read_many([(frame, size) for _, _, frame in wanted])
        for (task, owner, frame), block in zip(wanted, blocks, strict=True):
            if block is None:
                task.doubt = "a frame of it could not be read"
                continue
            try:
                state = struct.unpack_from("<b", block, layout["frame.state"])[0]
                (depth,) = struct.unpack_from("<i", block, layout["frame.depth"])
                (stack,) = _WORD.unpack_from(block, layout["frame.stack"])
                (code,) = _WORD.unpack_from(block, layout["frame.code"])
                (instruction,) = _INT.unpack_from(block, layout["frame.instruction"])
                stop = self._stops.get((code, instruction)) or self._stop((code, instruction))
                task.seen.append((frame + 8, block[8:]))
                task.frames.append(TaskFrame(stop.place, stop.code, frame, owner))
                if state <= _EXECUTING and self._waits(task, state, stop):
                    if not 0 < depth < _MAX_STACK:
                        raise UnreadableMemoryError(f"the frame at {frame:#x} has {depth} values")  # noqa: TRY301
                    task.frames[-1].values = depth
                    beyond.append((task, stack + 8 * (depth - 1)))
            except (UnreadableMemoryError, struct.error):
                task.doubt = "a frame of it could not be read"
        return self._tops(beyond)

    def _tops(self, wanted: Sequence[tuple[FoundTask, int]]) -> list[tuple[FoundTask, int]]:
        following: list[tuple[FoundTask, int]] = []
        values = self._memory.read_many([(address, 8) for _, address in wanted])
        for (task, address), value in zip(wanted, values, strict=True):
            if value is None:
                task.doubt = "the value stack of a frame of it could not be read"
                continue
            task.seen.append((address, value))
            following.append((task, _WORD.unpack(value)[0] & ~_TAGS))
        return following

    def _name_awaited(self, found: Iterable[FoundTask]) -> None:
        """Name the futures that iterators lead to."""
        wanted = [task for task in found if task.awaited and not task.awaits and not task.doubt]
        state_at = self._layout["future.state"]
        blocks = self._memory.read_many([(task.awaited, state_at + 4) for task in wanted])
        for task, data in zip(wanted, blocks, strict=True):
            try:
                if data is None:
                    raise UnreadableMemoryError("no future")  # noqa: TRY301
                kind = self._objects.type(_WORD.unpack_from(data, 8)[0])
                task.awaits = kind.name
                task.awaited_state = _FUTURE_STATES.get(struct.unpack_from("<I", data, state_at)[0], "")
            except UnreadableMemoryError:
                task.doubt = "the future that it awaits could not be read"

    def _check(self, found: Sequence[FoundTask]) -> None:
        """Read everything again, innermost first, and doubt what differs."""
        checked = [task for task in found if not task.doubt]
        seen = [each for task in checked for each in reversed(task.seen)]
        again = self._memory.read_many([(address, len(data)) for address, data in seen])
        before = [data for _, data in seen]
        end = 0
        for task in checked:
            begin, end = end, end + len(task.seen)
            if again[begin:end] != before[begin:end]:
                task.doubt = "it went on while it was read"
            elif task.waiter and task.awaited_state and task.waiter != task.awaited:
                task.doubt = "its innermost frame awaits something else than it does"


def _state(task: FoundTask) -> str:
    if task.future_state or not task.coroutine:
        return "finished"
    if task.executing:
        return "running"
    if task.created and len(task.frames) == 1:
        return "not started"
    if task.waiter and task.awaited_state in {"", "pending"}:
        return "waiting"
    return "ready"
