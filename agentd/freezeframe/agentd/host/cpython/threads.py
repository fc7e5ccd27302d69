"""Python threads of another process: who they are, the interpreter lock, their stacks.

Threads are those of the main interpreter. Names are threading's. A stack is read while its thread may run: only one
whose thread did not run meanwhile, by the kernel's counters, is sound; the caller, who reads /proc, has to tell.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from freezeframe.agentd.host.cpython.frames import Code, Codes, Place
from freezeframe.agentd.host.cpython.interpreter import Interpreter
from freezeframe.agentd.host.cpython.objects import Objects, printable
from freezeframe.agentd.host.target_memory import PagedMemory, UnreadableMemoryError

_MAX_THREADS = 1 << 14
_MAX_FRAMES = 2000
_MAX_NAMES = 1 << 14
_WORD = struct.Struct("<Q")
_TAGS = 3
# Owners of frames that are Python code: thread, generator, frame object. Others are the interpreter's own.
_FIRST_OWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonState:
    """One thread as its interpreter knows it."""

    # Address of PyThreadState.
    address: int
    # pthread_self().
    ident: int
    # Thread id in the innermost pid namespace; 0 when it is not told.
    native: int
    # threading's name; empty for one that threading does not know.
    name: str
    holds_gil: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Gil:
    """The interpreter lock."""

    # Where it is: a thread that waits for it waits at an address in it.
    start: int
    end: int
    locked: bool
    # Address of the PyThreadState that holds it, or held it last.
    holder: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFrame:
    """One frame of a running stack."""

    place: Place
    code: Code
    # Address of the frame.
    address: int


def gil_of(interpreter: Interpreter) -> Gil:
    """Read the interpreter lock. Raises TargetMemoryError."""
    layout, memory = interpreter.layout, interpreter.memory
    if interpreter.minor >= 12:
        start = memory.word(interpreter.address + layout["interpreter.gil"])
    else:
        start = interpreter.runtime + layout["runtime.gil"]
    holder = memory.word(start + layout["gil.holder"])
    (locked,) = struct.unpack("<i", memory.read(start + layout["gil.locked"], 4))
    return Gil(start=start, end=start + layout["gil.size"], locked=locked == 1, holder=holder)


def threads_of(interpreter: Interpreter, *, named: bool = True) -> tuple[PythonState, ...]:
    """List the threads, the youngest first; without their names they cost less. Raises TargetMemoryError."""
    layout, memory = interpreter.layout, PagedMemory(interpreter.memory)
    gil = gil_of(interpreter)
    numbered = "thread.native" in layout
    names = _names(interpreter) if named or not numbered else {}
    found: list[PythonState] = []
    seen: set[int] = set()
    address = memory.word(interpreter.address + layout["interpreter.threads"])
    while address:
        if address in seen or len(found) >= _MAX_THREADS:
            raise UnreadableMemoryError("the list of threads has no end")
        seen.add(address)
        ident = memory.word(address + layout["thread.ident"])
        name, native = names.get(ident, ("", 0))
        if numbered:
            native = memory.word(address + layout["thread.native"])
        found.append(
            PythonState(
                address=address,
                ident=ident,
                native=native if native < 1 << 32 else 0,
                name=name,
                holds_gil=gil.locked and gil.holder == address,
            )
        )
        address = memory.word(address + layout["thread.next"])
    return tuple(found)


def _names(interpreter: Interpreter) -> dict[int, tuple[str, int]]:
    """Name and native id by ident, from threading._active; {} where threading is not imported."""
    objects = interpreter.objects.over(PagedMemory(interpreter.memory))
    active = interpreter.module("threading", "_active").get("_active")
    found: dict[int, tuple[str, int]] = {}
    if not active:
        return found
    for key, thread in objects.dict_items(active)[:_MAX_NAMES]:
        try:
            attributes = objects.attributes(thread)
            name = objects.strings([attributes.get("_name", 0)])[0] or ""
            native = attributes.get("_native_id", 0)
            found[objects.integer(key)] = printable(name), _positive(objects, native)
        except UnreadableMemoryError:
            continue  # one that begins or ends now
    return found


def _positive(objects: Objects, address: int) -> int:
    if not address or objects.memory.word(address + 8) != objects.types["int"]:
        return 0
    value = objects.integer(address)
    return value if 0 <= value < 1 << 32 else 0


class StackWalker:
    """Walks the stacks of threads of one process."""

    def __init__(self, interpreter: Interpreter, codes: Codes) -> None:
        """Read nothing yet."""
        self._interpreter = interpreter
        self._layout = interpreter.layout
        self._minor = interpreter.minor
        self._codes = codes

    def walk(self, thread: PythonState, limit: int) -> list[StackFrame]:
        """Read the stack of one thread, innermost first, `limit` frames at most. Raises TargetMemoryError."""
        layout = self._layout
        # Frames lie side by side: whole pages, read anew for each thread.
        memory = PagedMemory(self._interpreter.memory)
        codes = self._codes
        if "thread.cframe" in layout:
            frame = memory.word(memory.word(thread.address + layout["thread.cframe"]) + layout["cframe.frame"])
        else:
            frame = memory.word(thread.address + layout["thread.frame"])
        found: list[StackFrame] = []
        size = 8 + max(layout[key] for key in ("frame.previous", "frame.code", "frame.instruction"))
        for _ in range(_MAX_FRAMES):
            if not frame or len(found) >= limit:
                break
            data = memory.read(frame, size)
            (previous,) = _WORD.unpack_from(data, layout["frame.previous"])
            if self._minor == 10 or memory.read(frame + layout["frame.owner"], 1)[0] < _FIRST_OWN:
                code = codes.code(_WORD.unpack_from(data, layout["frame.code"])[0] & ~_TAGS)
                if self._minor == 10:
                    (instruction,) = struct.unpack_from("<i", data, layout["frame.instruction"])
                else:
                    (instruction,) = _WORD.unpack_from(data, layout["frame.instruction"])
                place = codes.place(code, codes.offset(code, instruction))
                found.append(StackFrame(place=place, code=code, address=frame))
            frame = previous
        return found
