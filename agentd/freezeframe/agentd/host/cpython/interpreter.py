"""Finding the interpreter of a live CPython process and the layout of its objects, and checking both.

Where: the symbol `_PyRuntime` of libpython or of the program. Version: the symbol `Py_Version` (3.11 and later), else
the file's name. Layout: the table of that minor version; from 3.13 on, what the process tells in `_Py_DebugOffsets`
goes before it, so that a patch release may move it. Then names of types, sys.modules and the list of threads must read
as they must, or nothing is read at all.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace

from freezeframe.agentd.host.cpython.objects import TYPE_SYMBOLS, Objects
from freezeframe.agentd.host.cpython.symbols import SymbolTable
from freezeframe.agentd.host.cpython.tables import TABLES
from freezeframe.agentd.host.target_memory import PagedMemory, TargetMemory, UnreadableMemoryError
from freezeframe.agentd.host.text import escape

_COOKIE = b"xdebugpy"
_MAX_MAPS_BYTES = 16 * 1024 * 1024
# The kernel gives a page at a time.
_MAPS_CHUNK = 16 * 1024
_MAX_OFFSET = 1 << 20
_MAX_INTERPRETERS = 64
# Addresses, access, offset 0, device, inode, path.
_FIRST_MAPPING = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) \S+ 00000000 \S+ \S+ +(/.*)")
_FILE_VERSION = re.compile(r"python(\d)\.(\d+)")
# Modules that are looked into; the first two every interpreter has.
_MODULES = ("sys", "builtins", "threading", "asyncio.tasks", "_asyncio")
# Versions whose layout tables exist; what the process tells of itself begins with 3.13.
_FIRST_TELLING = 13
_FIRST_WITH_VERSION = 11


class NotPythonError(Exception):
    """No CPython interpreter is in this process."""


class UnsupportedPythonError(Exception):
    """There is one that cannot be read: its version, its build or its layout is not known, with why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedFile:
    """The first mapping of a file in a process."""

    start: int
    end: int
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """One interpreter that has passed its checks."""

    # (3, 11, 7); the last is -1 where the process does not tell.
    version: tuple[int, int, int]
    layout: Mapping[str, int]
    objects: Objects
    # Address of PyInterpreterState, and of _PyRuntimeState.
    address: int
    runtime: int
    # Of sys.modules those that are looked into: address by name.
    modules: Mapping[str, int]
    # Interpreters beside the main one, which are not looked at.
    others: int
    # First mappings of the files of the process.
    mappings: tuple[MappedFile, ...]
    # Path of the file that holds the interpreter, and of the program, as the kernel names them.
    path: str
    program: str

    @property
    def memory(self) -> TargetMemory:
        """The target's memory."""
        return self.objects.memory

    @property
    def minor(self) -> int:
        """11 of 3.11."""
        return self.version[1]

    def module(self, name: str, *names: str) -> dict[str, int]:
        """Addresses of what has these names in a module; {} when it is not imported. Raises TargetMemoryError."""
        address = self.modules.get(name)
        if not address:
            return {}
        return self.objects.members(self.memory.word(address + self.layout["module.dict"]), names)


def attach(directory: str, memory: TargetMemory, machine: str, before: Interpreter | None = None) -> Interpreter:
    """Find and check the interpreter of a process ("/proc/4711"); `before` is what was found in it earlier.

    What is where in the files of a process stays: then only the checks are done again.
    Raises NotPythonError, UnsupportedPythonError, TargetMemoryError, OSError.
    """
    program = os.readlink(f"{directory}/exe")
    if before is not None and before.program == program:
        objects = Objects(memory, before.layout, before.minor, before.objects.types)
        try:
            address, others, modules = _checked(objects, before.runtime)
        except UnreadableMemoryError:  # another program of the same name
            return attach(directory, memory, machine)
        return replace(before, objects=objects, address=address, others=others, modules=modules)
    mappings = parse_maps(_read(f"{directory}/maps"))
    # Symbols and static types stay as they were loaded: they are read by whole pages.
    loaded = PagedMemory(memory)
    found = _runtime(loaded, mappings, program)
    if found is None:
        raise NotPythonError("no file of it exports _PyRuntime")
    symbols, runtime, path = found
    version = _version(memory, symbols, path, program)
    name = f"{version[0]}.{version[1]}"
    if machine != "x86_64":
        raise UnsupportedPythonError(f"the layout of Python {name} on {machine} is not known")
    table = TABLES.get(name)
    if table is None:
        raise UnsupportedPythonError(f"the layout of Python {name} is not known: {', '.join(TABLES)} are")
    layout = _told(memory, runtime, table, version) if version[1] >= _FIRST_TELLING else dict(table)
    symbols.read_ahead(symbol for symbol, _ in TYPE_SYMBOLS.values())
    types = {short: symbols.address(symbol) or 0 for short, (symbol, _) in TYPE_SYMBOLS.items()}
    objects = Objects(memory, layout, version[1], types, loaded)
    try:
        address, others, modules = _checked(objects, runtime)
    except UnreadableMemoryError as error:
        raise UnsupportedPythonError(
            f"Python {name} in {escape(path.encode(), 200)} is not laid out as known: {error}"
        ) from error
    return Interpreter(
        version=version,
        layout=layout,
        objects=objects,
        address=address,
        runtime=runtime,
        modules=modules,
        others=others,
        mappings=mappings,
        path=path,
        program=program,
    )


def parse_maps(data: bytes) -> tuple[MappedFile, ...]:
    """Parse /proc/PID/maps: of each file the mapping of its first byte."""
    found = []
    for line in data.split(b"\n"):
        # Most lines are of other offsets, or of no file.
        mapping = _FIRST_MAPPING.fullmatch(line) if b" 00000000 " in line else None
        if mapping is not None:
            start, end, path = mapping.groups()
            found.append(MappedFile(start=int(start, 16), end=int(end, 16), path=os.fsdecode(path)))
    return tuple(found)


def _read(path: str) -> bytes:
    parts = []
    left = _MAX_MAPS_BYTES
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while left > 0 and (part := os.read(descriptor, min(left, _MAPS_CHUNK))):
            parts.append(part)
            left -= len(part)
    finally:
        os.close(descriptor)
    return b"".join(parts)


def _runtime(
    memory: TargetMemory, mappings: tuple[MappedFile, ...], program: str
) -> tuple[SymbolTable, int, str] | None:
    own = program.removesuffix(" (deleted)")
    shared = [each for each in mappings if "libpython" in os.path.basename(each.path)]
    main = [each for each in mappings if each.path.removesuffix(" (deleted)") == own]
    for mapping in (*shared, *main):
        try:
            symbols = SymbolTable(memory, mapping.start)
            runtime = symbols.address("_PyRuntime")
        except UnreadableMemoryError:
            continue
        if runtime is not None:
            return symbols, runtime, mapping.path
    return None


def _version(memory: TargetMemory, symbols: SymbolTable, path: str, program: str) -> tuple[int, int, int]:
    told = symbols.address("Py_Version")
    if told is not None:
        (number,) = struct.unpack("<I", memory.read(told, 4))
        return number >> 24, number >> 16 & 255, number >> 8 & 255
    for name in (path, program):
        named = _FILE_VERSION.search(os.path.basename(name)) or _FILE_VERSION.search(name)
        if named and int(named[2]) < _FIRST_WITH_VERSION:
            return int(named[1]), int(named[2]), -1
    raise UnsupportedPythonError("it does not tell which version of Python it is")


def _told(
    memory: TargetMemory, runtime: int, table: Mapping[str, int], version: tuple[int, int, int]
) -> dict[str, int]:
    """Lay what the process tells in _Py_DebugOffsets over the table."""
    data = memory.read(runtime, table["told"])
    if not data.startswith(_COOKIE):
        raise UnsupportedPythonError("its offsets for debuggers are not where they must be")
    (number,) = struct.unpack_from("<Q", data, table["told.version"])
    if (number >> 24, number >> 16 & 255) != version[:2]:
        raise UnsupportedPythonError(f"its offsets for debuggers are of version {number:#x}")
    if struct.unpack_from("<Q", data, table["told.free_threaded"])[0]:
        raise UnsupportedPythonError("it is a build without the interpreter lock, whose layout is not known")
    layout = dict(table)
    for key, place in table.items():
        if key.startswith("told:"):
            (value,) = struct.unpack_from("<Q", data, place)
            if value > _MAX_OFFSET:
                raise UnsupportedPythonError(f"it tells {value} as the offset of {key[5:]}")
            layout[key[5:]] = value
    return layout


def _checked(objects: Objects, runtime: int) -> tuple[int, int, dict[str, int]]:
    """Address of the main interpreter, how many others there are, and the main one's modules, if all is as it must."""
    memory, layout = objects.memory, objects.layout
    address, others = _main(memory, layout, runtime)
    _check_types(objects)
    modules = objects.members(memory.word(address + layout["interpreter.modules"]), _MODULES)
    _check_interpreter(memory, layout, address, modules)
    return address, others, modules


def _main(memory: TargetMemory, layout: Mapping[str, int], runtime: int) -> tuple[int, int]:
    """Find the main interpreter, the last of the list since later ones are put before it, and count the others."""
    address = memory.word(runtime + layout["runtime.interpreters"])
    for others in range(_MAX_INTERPRETERS):
        following = memory.word(address + layout["interpreter.next"])
        if not following:
            return address, others
        address = following
    raise UnreadableMemoryError("its list of interpreters has no end")


def _check_types(objects: Objects) -> None:
    # Their names lie side by side, and are read at once with their pages.
    at = objects.layout["type.name"]
    named = objects.lasting.read_many([(address + at, 8) for address in objects.types.values() if address])
    objects.lasting.read_many([(int.from_bytes(raw, "little"), 1) for raw in named if raw is not None])
    for short, (symbol, name) in TYPE_SYMBOLS.items():
        address = objects.types[short]
        if not address:
            raise UnreadableMemoryError(f"it exports no {symbol}")
        if objects.type(address).name != name:
            raise UnreadableMemoryError(f"the name of {symbol} is {objects.type(address).name}")


def _check_interpreter(
    memory: TargetMemory, layout: Mapping[str, int], address: int, modules: Mapping[str, int]
) -> None:
    missing = set(_MODULES[:2]) - set(modules)
    if missing:
        raise UnreadableMemoryError(f"its sys.modules lacks {', '.join(sorted(missing))}")
    if not memory.word(address + layout["interpreter.threads"]):
        raise UnreadableMemoryError("its list of threads is empty")
