"""The line of an instruction: location tables of code objects, of 3.10 and of 3.11 and later. Pure."""

from __future__ import annotations

from collections.abc import Iterator

# Kinds of entries of 3.11's table (Objects/locations.md); below these come the short forms.
_SHORT_FORMS = 10
_ONE_LINE_FORMS = 12
_NO_COLUMNS = 13
_LONG_FORM = 14
_NO_LINE_DELTA = -128
_MAX_VARINT_BITS = 35


def line_of(table: bytes, first_line: int, offset: int, *, minor: int) -> int:
    """Line of the instruction at `offset` bytes into the code; 0 when it has none.

    `table` is co_linetable, `minor` that of the version. A table that is cut or none gives some line, never an error.
    """
    if offset < 0:
        return first_line
    entries = _entries_310(table, first_line) if minor <= 10 else _entries_311(table, first_line)
    end = 0
    for length, line in entries:
        end += length
        if offset < end:
            return line
    return 0


def _entries_310(table: bytes, line: int) -> Iterator[tuple[int, int]]:
    """Yield (bytes of code, line); 0 for code of no line."""
    for at in range(0, len(table) - 1, 2):
        delta = table[at + 1] - 256 if table[at + 1] > 127 else table[at + 1]
        if delta == _NO_LINE_DELTA:
            yield table[at], 0
        else:
            line += delta
            yield table[at], line


def _entries_311(table: bytes, line: int) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(table):
        first = table[at]
        at += 1
        kind = first >> 3 & 15
        length = ((first & 7) + 1) * 2
        here = line
        if kind in {_NO_COLUMNS, _LONG_FORM}:
            delta, at = _varint(table, at)
            line += -(delta >> 1) if delta & 1 else delta >> 1
            here = line
            for _ in range(3 if kind == _LONG_FORM else 0):
                _, at = _varint(table, at)
        elif kind < _SHORT_FORMS:
            at += 1
        elif kind <= _ONE_LINE_FORMS:
            line += kind - _SHORT_FORMS
            here = line
            at += 2
        else:
            here = 0
        yield length, here


def _varint(table: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(table) and shift < _MAX_VARINT_BITS:
        byte = table[at]
        at += 1
        value |= (byte & 63) << shift
        if not byte & 64:
            break
        shift += 6
    return value, at
