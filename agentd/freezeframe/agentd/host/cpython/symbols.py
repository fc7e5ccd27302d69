"""Dynamic symbols of a mapped ELF file, looked up through its GNU hash table in the target's memory.

No file is opened: mount namespaces, deleted and replaced files do not matter.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable

from freezeframe.agentd.host.target_memory import TargetMemory, UnreadableMemoryError

_HEADER = 64
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_LOAD, _DYNAMIC = 1, 2
_STRINGS, _SYMBOLS, _GNU_HASH = 5, 6, 0x6FFFFEF5
_SYMBOL = struct.Struct("<IBBHQQ")
# More of these than any real file has.
_MAX_SEGMENTS = 64
_MAX_DYNAMIC_BYTES = 16 * 1024
_MAX_CHAIN = 4096
_MAX_BUCKETS = 1 << 24
_PAGE_MASK = 0xFFF
_WORD_MASK = (1 << 64) - 1


class SymbolTable:
    """Symbols that one mapped file exports."""

    def __init__(self, memory: TargetMemory, base: int) -> None:
        """`base` is where the file's first byte is mapped. Raises TargetMemoryError."""
        self._memory = memory
        header = memory.read(base, _HEADER)
        if header[:6] != b"\x7fELF\x02\x01":
            raise UnreadableMemoryError(f"no 64-bit ELF file is mapped at {base:#x}")
        (at,) = struct.unpack_from("<Q", header, 32)
        (count,) = struct.unpack_from("<H", header, 56)
        if not 0 < count <= _MAX_SEGMENTS or at > 1 << 20:
            raise UnreadableMemoryError("the ELF header is not one")
        segments = memory.read(base + at, _PROGRAM_HEADER.size * count)
        loads: list[int] = []
        dynamic: tuple[int, int] | None = None
        for kind, _flags, _offset, address, _physical, _file, size, _align in _PROGRAM_HEADER.iter_unpack(segments):
            if kind == _LOAD:
                loads.append(address)
            elif kind == _DYNAMIC:
                dynamic = (address, size)
        if not loads or dynamic is None:
            raise UnreadableMemoryError("the ELF file has no dynamic section")
        self.bias = (base - (min(loads) & ~_PAGE_MASK)) & _WORD_MASK
        entries = memory.read((dynamic[0] + self.bias) & _WORD_MASK, min(dynamic[1], _MAX_DYNAMIC_BYTES) // 16 * 16)
        told = {tag: value for tag, value in struct.iter_unpack("<QQ", entries) if tag}
        try:
            self._strings, self._symbols, self._hash = (
                self._relocated(told[tag]) for tag in (_STRINGS, _SYMBOLS, _GNU_HASH)
            )
        except KeyError as error:
            raise UnreadableMemoryError("the ELF file has no hashed symbols") from error
        self._buckets, self._first, self._bloom, _ = struct.unpack("<IIII", memory.read(self._hash, 16))
        if not 0 < self._buckets < _MAX_BUCKETS or self._bloom > _MAX_BUCKETS:
            raise UnreadableMemoryError("the symbol hash table is not one")

    def _relocated(self, value: int) -> int:
        # The loader of glibc has relocated these in place, that of musl has not.
        return value if self.bias and value >= self.bias else value + self.bias

    def read_ahead(self, names: Iterable[str]) -> None:
        """Read what looking for these will need, level by level, where the memory keeps what was read."""
        buckets = self._hash + 16 + 8 * self._bloom
        places = [(buckets + 4 * (_hashed(name.encode()) % self._buckets), 4) for name in names]
        found = [int.from_bytes(raw, "little") for raw in self._memory.read_many(places) if raw is not None]
        indexes = [index for index in found if index >= self._first]
        chain = buckets + 4 * (self._buckets - self._first)
        self._memory.read_many([(chain + 4 * index, 4) for index in indexes])
        # Of most the first of its chain, or the next, is the one.
        entries = [
            (self._symbols + _SYMBOL.size * (index + next_), _SYMBOL.size) for index in indexes for next_ in (0, 1)
        ]
        symbols = [_SYMBOL.unpack(raw) for raw in self._memory.read_many(entries) if raw is not None]
        self._memory.read_many([(self._strings + symbol[0], 1) for symbol in symbols])

    def address(self, name: str) -> int | None:
        """Where a symbol is in memory; None when the file does not export it. Raises TargetMemoryError."""
        wanted = name.encode()
        hashed = _hashed(wanted)
        buckets = self._hash + 16 + 8 * self._bloom
        index = self._number(buckets + 4 * (hashed % self._buckets))
        if index < self._first:
            return None
        chain = buckets + 4 * self._buckets
        for _ in range(_MAX_CHAIN):
            link = self._number(chain + 4 * (index - self._first))
            if link | 1 == hashed | 1:
                at, _info, _other, _section, value, _size = _SYMBOL.unpack(
                    self._memory.read(self._symbols + _SYMBOL.size * index, _SYMBOL.size)
                )
                if self._memory.read(self._strings + at, len(wanted) + 1) == wanted + b"\0":
                    return int(value + self.bias) & _WORD_MASK
            if link & 1:
                return None
            index += 1
        raise UnreadableMemoryError("a chain of the symbol hash table has no end")

    def _number(self, address: int) -> int:
        number: int = struct.unpack("<I", self._memory.read(address, 4))[0]
        return number


@functools.cache
def _hashed(name: bytes) -> int:
    hashed = 5381
    for byte in name:
        hashed = (hashed * 33 + byte) & 0xFFFFFFFF
    return hashed
