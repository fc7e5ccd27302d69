"""The little of ELF that names need: sections, build id, symbol tables. 64-bit little-endian files only.

The file is a target's, hence hostile: every offset is checked before use, every table is capped.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_EHDR = struct.Struct("<16sHHIQQQIHHHHHH")
_PHDR = struct.Struct("<IIQQQQQQ")
_SHDR = struct.Struct("<IIQQQQIIQQ")
_NOTE = struct.Struct("<III")
_IDENT = b"\x7fELF\x02\x01"
_PT_LOAD, _PT_NOTE = 1, 4
_SHT_SYMTAB, _SHT_DYNSYM = 2, 11
_ET_EXEC, _ET_DYN = 2, 3
_NT_GNU_BUILD_ID = 3
_SECTIONS = 4096
_SEGMENTS = 256
_NOTE_BYTES = 64 * 1024
_BUILD_ID_BYTES = 64
_ENTRY_BYTES = 24
# 2.8 million symbols.
SYMBOL_BYTES = 64 * 1024 * 1024


class ElfError(Exception):
    """Not an ELF file that can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Where one table lies in the file."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Elf:
    """What was found in a file."""

    machine: int
    # Lower-case hexadecimal; empty when it has none.
    build_id: str
    # Offset in the file, address and size in the file of each loaded segment.
    segments: tuple[tuple[int, int, int], ...]
    # The fullest symbol table and its names; None when it has none.
    symbols: Section | None
    names: Section | None
    # Whether only the dynamic symbols are there.
    stripped: bool
    # Whether it is a program or a library: what a linker has yet to move is not run as it is.
    loadable: bool
    # The section headers, as libelf finds them; None when it has none.
    headers: Section | None

    def address(self, offset: int) -> int | None:
        """Virtual address, as the file counts, of a byte of the file."""
        for start, address, size in self.segments:
            if start <= offset < start + size:
                return address + offset - start
        return None


def parse(image: memoryview) -> Elf:
    """Read the headers. Raises ElfError."""
    try:
        return _parse(image)
    except (struct.error, OverflowError) as error:
        raise ElfError(f"cut off: {error}") from error


def _parse(image: memoryview) -> Elf:
    ident, form, machine, _, _, phoff, shoff, _, _, phentsize, phnum, shentsize, shnum, _ = _EHDR.unpack_from(image, 0)
    if ident[:6] != _IDENT:
        raise ElfError("not a 64-bit little-endian ELF file")
    segments, build_id = [], ""
    if phentsize == _PHDR.size:
        for index in range(min(phnum, _SEGMENTS)):
            kind, _, offset, address, _, in_file, _, _ = _PHDR.unpack_from(image, phoff + index * _PHDR.size)
            if kind == _PT_LOAD:
                segments.append((offset, address, in_file))
            elif kind == _PT_NOTE and not build_id:
                build_id = _build_id(image, offset, min(in_file, _NOTE_BYTES))
    tables = {}
    if shentsize == _SHDR.size and 0 < shoff < len(image):
        for index in range(min(shnum, _SECTIONS)):
            at = shoff + index * _SHDR.size
            if at + _SHDR.size > len(image):
                break
            _, kind, _, _, offset, size, link, _, _, entry = _SHDR.unpack_from(image, at)
            if kind in (_SHT_SYMTAB, _SHT_DYNSYM) and entry == _ENTRY_BYTES and link < min(shnum, _SECTIONS):
                _, _, _, _, names_at, names_size, *_ = _SHDR.unpack_from(image, shoff + link * _SHDR.size)
                tables[kind] = (_section(image, offset, size), _section(image, names_at, names_size))
    symbols, names = tables.get(_SHT_SYMTAB) or tables.get(_SHT_DYNSYM) or (None, None)
    return Elf(
        machine=machine,
        build_id=build_id,
        segments=tuple(segments),
        symbols=symbols if names else None,
        names=names if symbols else None,
        stripped=_SHT_SYMTAB not in tables,
        loadable=form in (_ET_EXEC, _ET_DYN),
        headers=_headers(image, shoff, shnum),
    )


def _headers(image: memoryview, offset: int, count: int) -> Section | None:
    # Whatever size of one the file tells: libelf takes them to be as large as they are.
    if not 0 < offset <= len(image) - _SHDR.size:
        return None
    # Of more sections than 16 bits count, the first header has the number.
    count = count or _SHDR.unpack_from(image, offset)[5]
    return Section(offset=offset, size=min(count * _SHDR.size, len(image) - offset))


def _section(image: memoryview, offset: int, size: int) -> Section | None:
    return Section(offset=offset, size=size) if size and offset + size <= len(image) else None


def _build_id(image: memoryview, offset: int, size: int) -> str:
    at, end = offset, min(offset + size, len(image))
    while at + _NOTE.size <= end:
        name_bytes, desc_bytes, kind = _NOTE.unpack_from(image, at)
        name_at = at + _NOTE.size
        desc_at = name_at + (name_bytes + 3 & ~3)
        at = desc_at + (desc_bytes + 3 & ~3)
        if kind == _NT_GNU_BUILD_ID and bytes(image[name_at : name_at + min(name_bytes, 4)]) == b"GNU\0":
            return bytes(image[desc_at : desc_at + min(desc_bytes, _BUILD_ID_BYTES)]).hex()
    return ""
