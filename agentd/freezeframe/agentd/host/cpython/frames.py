"""Code objects and suspended frames of another process.

A frame is told as (code, offset of its instruction, what it rests on): the object on top of its value stack when it
awaits, which is how one coroutine leads to the next.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from freezeframe.agentd.host.cpython.code import line_of
from freezeframe.agentd.host.cpython.objects import Objects, printable
from freezeframe.agentd.host.target_memory import UnreadableMemoryError

_MAX_TABLE = 1 << 20
_MAX_LOCALS = 4096
_WORD = struct.Struct("<Q")
_INT = struct.Struct("<i")
_CODE_OFFSET = 1 << 24
# 3.10: the opcode of `yield from` and `await`.
_YIELD_FROM = 72
# Frame references of 3.14 carry tags.
_TAGS = 3
# co_localspluskinds: a variable of an enclosing function.
_FREE = 0x80
_LIBRARY = re.compile(r"^/.*/python3\.\d+/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What is read of a code object, once."""

    address: int
    # Qualified name from 3.11 on, and the last part of it.
    function: str
    name: str
    file: str
    first_line: int
    table: bytes
    # Address of the tuples of names of locals, cells and free variables; one tuple from 3.11 on.
    name_tuples: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One place in a code object."""

    function: str
    file: str
    line: int


def short_path(path: str) -> str:
    """Give the path below the folder that Python imports from: "starlette/routing.py"; others as they are."""
    for folder in ("/site-packages/", "/dist-packages/"):
        _, found, rest = path.rpartition(folder)
        if found:
            return rest
    library = _LIBRARY.search(path)
    return path[library.end() :] if library else path


class Codes:
    """Code objects of one process, each read once, and the locals of its frames."""

    def __init__(self, objects: Objects) -> None:
        """Nothing read yet."""
        # Code does not change, and lies close together.
        self._fixed = objects.over(objects.lasting)
        self._objects = objects
        self._layout = objects.layout
        self._minor = objects.minor
        if self._minor >= 11:
            parts = ["qualname", "file", "lines", "names", "kinds"]
        else:
            parts = ["name", "file", "lines", "names", "cell_names", "free_names"]
        self._part_places = [objects.layout[f"code.{part}"] for part in parts]
        self._head_bytes = max(*self._part_places, objects.layout["code.first_line"]) + 8
        self._known: dict[int, Code] = {}
        self._places: dict[tuple[int, int], Place] = {}
        self._waits: dict[tuple[int, int], bool] = {}
        self._names: dict[int, tuple[str, ...]] = {}
        self._own_names: dict[int, frozenset[str]] = {}

    def over(self, objects: Objects) -> Codes:
        """Give the same reader whose locals are read through `objects`; what is known stays known."""
        other = Codes(objects)
        other._known, other._places, other._waits = self._known, self._places, self._waits
        other._names, other._own_names = self._names, self._own_names
        return other

    def read_ahead(self, addresses: Iterable[int]) -> None:
        """Read what several code objects consist of with a few calls, so that `code` and `names` find it there."""
        unknown = [address for address in dict.fromkeys(addresses) if address not in self._known]
        if len(unknown) <= 1:
            return
        objects, memory, layout = self._fixed, self._fixed.memory, self._layout
        heads = memory.read_many([(address, self._head_bytes) for address in unknown])
        parts = [self._parts(head) for head in heads if head is not None]
        # Whole pages come of it: what lies in the next one is read when it is asked for.
        memory.read_many([(part, 64) for each in parts for part in each])
        items_at = layout["tuple.items"]
        strings = [part for name, file, *_ in parts for part in (name, file)]
        for data in memory.read_many([(names, items_at + 64) for _, _, _, names, *_ in parts]):
            if data is not None:
                (count,) = _WORD.unpack_from(data, layout["sized.size"])
                strings += struct.unpack_from(f"<{min(count, 8)}Q", data, items_at)
        objects.strings(strings)

    def _parts(self, head: bytes) -> list[int]:
        """Addresses of name, file, table of lines, names of locals, and what the version has more."""
        return [_WORD.unpack_from(head, at)[0] for at in self._part_places]

    def code(self, address: int) -> Code:
        """Read a code object. Raises TargetMemoryError."""
        found = self._known.get(address)
        if found is not None:
            return found
        objects = self._fixed
        head = objects.memory.read(address, self._head_bytes)
        (first_line,) = _INT.unpack_from(head, self._layout["code.first_line"])
        if _WORD.unpack_from(head, 8)[0] != objects.types["code"] or not 0 <= first_line < 1 << 30:
            raise UnreadableMemoryError(f"no code object at {address:#x}")
        name, file, lines, names, *more = self._parts(head)
        function = printable(objects.string(name))
        found = self._known[address] = Code(
            address=address,
            function=function,
            name=function.rpartition(".")[2],
            file=printable(objects.string(file)),
            first_line=first_line,
            table=objects.data(lines, _MAX_TABLE),
            name_tuples=(names, *more) if self._minor == 10 else (names,),
        )
        return found

    def place(self, code: Code, offset: int) -> Place:
        """Give function, file and line of an instruction."""
        key = (code.address, offset)
        found = self._places.get(key)
        if found is None:
            line = line_of(code.table, code.first_line, offset, minor=self._minor)
            found = self._places[key] = Place(function=code.function, file=code.file, line=max(0, line))
        return found

    def offset(self, code: Code, instruction: int) -> int:
        """Turn a frame's instruction pointer (3.10: index) into bytes from the code's start.

        Raises UnreadableMemoryError.
        """
        if self._minor == 10:
            return instruction * 2
        offset = instruction - (code.address + self._layout["code.instructions"])
        # Before its first instruction a frame points one below.
        if not -2 <= offset < _CODE_OFFSET:
            raise UnreadableMemoryError(f"a frame of {code.function} is at no instruction of it")
        return offset

    def awaits(self, code: Code, offset: int) -> bool:
        """Tell whether a frame that is suspended there awaits another object, up to 3.12. Raises TargetMemoryError."""
        key = (code.address, offset)
        found = self._waits.get(key)
        if found is None:
            if self._minor == 10:
                found = self._opcode_310(code, offset + 2) == _YIELD_FROM
            else:
                # The instruction after the yield is RESUME; its argument says what was resumed.
                next_argument = code.address + self._layout["code.instructions"] + offset + 3
                found = self._fixed.memory.read(next_argument, 1)[0] & 3 >= 2
            self._waits[key] = found
        return found

    def _opcode_310(self, code: Code, offset: int) -> int:
        instructions = self._fixed.memory.word(code.address + self._layout["code.instructions"])
        return self._fixed.memory.read(instructions + self._layout["bytes.data"] + offset, 1)[0]

    def names(self, code: Code) -> tuple[str, ...]:
        """Names of the frame's slots: locals, cells, free variables. Raises TargetMemoryError."""
        found = self._names.get(code.address)
        if found is None:
            addresses = [item for each in code.name_tuples for item in self._fixed.sequence(each)]
            if len(addresses) > _MAX_LOCALS:
                raise UnreadableMemoryError(f"no names of locals in {code.function}")
            found = self._names[code.address] = tuple(name or "" for name in self._fixed.strings(addresses))
        return found

    def own_names(self, code: Code) -> frozenset[str]:
        """Names of the frame's slots that are no free variables of another one. Raises TargetMemoryError."""
        found = self._own_names.get(code.address)
        if found is None:
            names = self.names(code)
            if self._minor == 10:
                free = len(self._fixed.sequence(code.name_tuples[-1]))
                found = frozenset(names[: len(names) - free])
            else:
                place = self._fixed.memory.word(code.address + self._layout["code.kinds"])
                kinds = self._fixed.data(place, _MAX_LOCALS)
                if len(kinds) != len(names):
                    raise UnreadableMemoryError(f"no names of locals in {code.function}")
                found = frozenset(name for name, kind in zip(names, kinds, strict=True) if not kind & _FREE)
            self._own_names[code.address] = found
        return found

    def local(self, frame: int, code: Code, *wanted: str) -> dict[str, int]:
        """Addresses of some locals of a frame, cells opened; those that are unbound are left out.

        `frame` is the address of the frame. Raises TargetMemoryError.
        """
        names = self.names(code)
        slots = [(name, index) for index, name in enumerate(names) if name in wanted]
        base = frame + self._layout["frame.locals"]
        values = self._objects.memory.read_many([(base + 8 * index, 8) for _, index in slots])
        found: dict[str, int] = {}
        for (name, _), raw in zip(slots, values, strict=True):
            value = _WORD.unpack(raw)[0] & ~_TAGS if raw is not None else 0
            if value:
                value = self._opened(value)
            if value:
                found[name] = value
        return found

    def value_stack(self, frame: int, code: Code) -> tuple[int, int]:
        """Address of the value stack of a suspended frame, above its locals, and how many values are on it.

        `frame` is the address of the frame. Raises TargetMemoryError.
        """
        layout = self._layout
        slots = len(self.names(code))
        if self._minor == 10:
            (depth,) = struct.unpack("<i", self._objects.memory.read(frame + layout["frame.depth"], 4))
            return self._objects.memory.word(frame + layout["frame.stack"]), int(depth)
        start = frame + layout["frame.locals"]
        if self._minor >= 14:
            count = (self._objects.memory.word(frame + layout["frame.top"]) - start) >> 3
        else:
            (count,) = struct.unpack("<i", self._objects.memory.read(frame + layout["frame.top"], 4))
        return start + 8 * slots, int(count) - slots

    def _opened(self, value: int) -> int:
        if self._objects.memory.word(value + 8) == self._objects.types["cell"]:
            return self._objects.memory.word(value + self._layout["cell.value"])
        return value
