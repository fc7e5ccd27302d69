"""The set of all asyncio tasks of a process, as that version of asyncio keeps it.

3.10, 3.11: the WeakSet `asyncio.tasks._all_tasks`. 3.12, 3.13: `_scheduled_tasks` and the set `_eager_tasks`. 3.14:
linked lists in each thread and in the interpreter, and the two sets for tasks of other classes. Where 3.14 keeps the
members of a task moved between its patch releases: it is read from the section `.AsyncioDebug` of the file that holds
_asyncio, which is not in memory.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Mapping

from freezeframe.agentd.host.cpython.interpreter import Interpreter, MappedFile, UnsupportedPythonError
from freezeframe.agentd.host.cpython.symbols import SymbolTable
from freezeframe.agentd.host.target_memory import TargetMemory, UnreadableMemoryError

_MAX_TASKS = 1 << 18
_MAX_THREADS = 1 << 14
_MAX_SECTIONS = 256
_TRIES = 10
_MAX_STUMBLES = 64
_PAGE = 4096
_SECTION = b".AsyncioDebug"
# Words of Py_AsyncioModuleDebugOffsets (Modules/_asynciomodule.c).
_DEBUG_WORDS = (
    "task.basicsize", "task.name", "task.awaited_by", "task.is_task", "task.awaited_by_is_set", "task.coroutine",
    "task.node", "interpreter.size", "interpreter.tasks", "thread.size", "thread.loop", "thread.task", "thread.tasks",
)  # fmt: skip
_FIRST_WITH_LISTS = 14
# Sets of tasks in asyncio.tasks, of one version or another.
_SETS = ("_all_tasks", "_scheduled_tasks", "_eager_tasks")
_SECTION_HEADER = struct.Struct("<IIQQQQIIQQ")
_MAX_NAMES = 1 << 20


class NoAsyncioError(Exception):
    """The process has not imported asyncio."""


class TaskSet:
    """Where the tasks of one process are."""

    def __init__(self, interpreter: Interpreter, directory: str) -> None:
        """Find it. Raises NoAsyncioError, UnsupportedPythonError, TargetMemoryError, OSError."""
        self._interpreter = interpreter
        self._objects = interpreter.objects
        self._memory = interpreter.memory
        if "asyncio.tasks" not in interpreter.modules:
            raise NoAsyncioError("it has not imported asyncio")
        self._names = interpreter.module("asyncio.tasks", *_SETS)
        own = interpreter.module("_asyncio", "Task")
        self._type = own.get("Task", 0)
        if not self._type:
            raise UnsupportedPythonError("its asyncio is the one without C code, whose tasks are not read")
        self.layout: Mapping[str, int] = interpreter.layout
        if interpreter.minor >= _FIRST_WITH_LISTS:
            self.layout = {**interpreter.layout, **_asyncio_debug(interpreter, directory)}
        size = self._objects.type(self._type).basicsize
        if size != self.layout["task.basicsize"]:
            told = self.layout["task.basicsize"]
            raise UnsupportedPythonError(f"its tasks have {size} bytes where {told} are known")

    def is_task(self, type_address: int) -> bool:
        """Tell whether a type is that of tasks or derives from it. Raises TargetMemoryError."""
        return self._objects.is_instance(type_address, self._type)

    def addresses(self) -> list[int]:
        """Read the addresses of all tasks. Raises TargetMemoryError."""
        for attempt in range(_TRIES):
            try:
                return self._addresses()
            except UnreadableMemoryError:
                if attempt == _TRIES - 1:
                    raise
        return []

    def _addresses(self) -> list[int]:
        found: list[int] = []
        if self._interpreter.minor >= _FIRST_WITH_LISTS:
            found += self._linked()
        weak = self._names.get("_scheduled_tasks") or self._names.get("_all_tasks")
        if weak:
            data = self._objects.attributes(weak).get("data")
            references = self._members(data) if data else []
            at = self.layout["weakref.object"]
            for word in self._memory.read_many([(reference + at, 8) for reference in references]):
                if word is not None:
                    found.append(int.from_bytes(word, "little"))
        eager = self._names.get("_eager_tasks")
        if eager:
            found += self._members(eager)
        return [address for address in dict.fromkeys(found) if address and not address & 7]

    def _members(self, address: int) -> list[int]:
        """Members of a set, whose table is the same before and after."""
        at, size = self.layout["set.mask"], self.layout["set.table"] + 8 - self.layout["set.mask"]
        before = self._memory.read(address + at, size)
        found = self._objects.set_items(address)
        if self._memory.read(address + at, size) != before:
            raise UnreadableMemoryError("the set of tasks grew while it was read")
        return found

    def _linked(self) -> list[int]:
        """Tasks of the lists: one in each thread, one of threads that have ended."""
        layout, memory = self.layout, self._memory
        heads = [self._interpreter.address + layout["interpreter.tasks"]]
        thread = memory.word(self._interpreter.address + layout["interpreter.threads"])
        while thread and len(heads) < _MAX_THREADS:
            heads.append(thread + layout["thread.tasks"])
            thread = memory.word(thread + layout["thread.next"])
        return [node - layout["task.node"] for head in heads for node in _follow(memory, head)]


def _follow(memory: TargetMemory, head: int) -> list[int]:
    """Follow one list of nodes (next, previous), whole pages at a time: neighbours in it are often neighbours there.

    Where a node does not point back the list has changed: back to where it has not, farther each time. New tasks come
    at the end and those that stay are before them, so that most of what was followed holds.
    """
    found: list[int] = []
    pages: dict[int, bytes] = {}
    stumbles = 0
    while True:
        previous = found[-1] if found else head
        try:
            node = _node(memory, previous, pages)[0]
            if node == head:
                return found
            holds = bool(node) and not node & 7 and _node(memory, node, pages)[1] == previous
        except UnreadableMemoryError:
            holds = False
        if holds:
            found.append(node)
            if len(found) > _MAX_TASKS:
                raise UnreadableMemoryError("a list of tasks has no end")
            continue
        stumbles += 1
        if stumbles > _MAX_STUMBLES:
            raise UnreadableMemoryError("a list of tasks changed all the time while it was read")
        pages.clear()
        del found[-min(len(found), 1 << min(stumbles, 20)) :]


def _node(memory: TargetMemory, node: int, pages: dict[int, bytes]) -> tuple[int, int]:
    base, at = node & ~(_PAGE - 1), node & (_PAGE - 1)
    if at > _PAGE - 16:
        return struct.unpack("<QQ", memory.read(node, 16))
    page = pages.get(base)
    if page is None:
        page = pages[base] = memory.read(base, _PAGE)
    return struct.unpack_from("<QQ", page, at)


def _asyncio_debug(interpreter: Interpreter, directory: str) -> dict[str, int]:
    """Read .AsyncioDebug of the process: without it the members of a task may be anywhere."""
    table = interpreter.layout
    for mapping in interpreter.mappings:
        if "_asyncio" not in os.path.basename(mapping.path) and mapping.path != interpreter.path:
            continue
        address = _section_in_file(directory, mapping)
        if address is None:
            continue
        bias = SymbolTable(interpreter.memory, mapping.start).bias
        raw = interpreter.memory.read(bias + address, 8 * len(_DEBUG_WORDS))
        told = dict(zip(_DEBUG_WORDS, struct.unpack(f"<{len(_DEBUG_WORDS)}Q", raw), strict=True))
        if any(value > 1 << 20 for value in told.values()):
            raise UnsupportedPythonError("its offsets of asyncio are none")
        wanted = ("task.basicsize", "task.name", "task.coroutine", "task.node", "interpreter.tasks", "thread.tasks")
        layout = {key: told[key] for key in wanted}
        # Not told, but beside what is (Modules/_asynciomodule.c).
        layout["task.waiter"] = told["task.coroutine"] + table["task.waiter"] - table["task.coroutine"]
        layout["future.state"] = told["task.is_task"] - 4
        return layout
    raise UnsupportedPythonError("the section .AsyncioDebug of its _asyncio cannot be read")


def _section_in_file(directory: str, mapping: MappedFile) -> int | None:
    """Address of the section in a mapped file, opened as the kernel has it, else by its path."""
    for path in (f"{directory}/map_files/{mapping.start:x}-{mapping.end:x}", f"{directory}/root{mapping.path}"):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError:
            continue
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                continue
            return section_address(lambda at, size, file=descriptor: os.pread(file, size, at), _SECTION)  # type: ignore[misc]
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return None


def section_address(read: Callable[[int, int], bytes], name: bytes) -> int | None:
    """Address of an ELF file's section; None when it has none, or is none. `read` takes place and size."""
    try:
        header = read(0, 64)
        (at,) = struct.unpack_from("<Q", header, 40)
        size, count, names_index = struct.unpack_from("<HHH", header, 58)
        if size != _SECTION_HEADER.size or not 0 < count <= _MAX_SECTIONS or names_index >= count or at >= 1 << 40:
            return None
        sections = list(_SECTION_HEADER.iter_unpack(read(at, size * count)))
        _, _, _, _, names_at, names_size, *_ = sections[names_index]
        if names_at >= 1 << 40 or names_size > _MAX_NAMES:
            return None
        names = read(names_at, names_size)
    except (struct.error, IndexError):
        return None
    for section in sections:
        if names[section[0] :].partition(b"\0")[0] == name:
            return int(section[3])
    return None
