"""The line of an instruction: location tables of code objects, of 3.10 and of 3.11 and later. Pure."""

from __future__ import annotations

import re

# Kinds of entries of 3.11's table (Objects/locations.md); below these come the short forms.
_SHORT_FORMS = 10
_ONE_LINE_FORMS = 12
_NO_COLUMNS = 13
_LONG_FORM = 14
_NO_LINE = 15
_NO_LINE_DELTA = -128
_MAX_VARINT_END = 7
# Of an entry the first byte alone has the highest bit.
_ENTRY = re.compile(rb"[\x80-\xff][\0-\x7f]*")


def line_of(table: bytes, first_line: int, offset: int, *, minor: int) -> int:
    """Line of the instruction at `offset` bytes into the code; 0 when it has none.

    `table` is co_linetable, `minor` that of the version. A table that is cut or none gives some line, never an error.
    """
    if offset < 0:
        return first_line
    return _line_310(table, first_line, offset) if minor <= 10 else _line_311(table, first_line, offset)


def _line_310(table: bytes, line: int, offset: int) -> int:
    """Pairs: bytes of code, and the step of the line or that there is none."""
    end = 0
    for at in range(0, len(table) - 1, 2):
        delta = table[at + 1] - 256 if table[at + 1] > 127 else table[at + 1]
        end += table[at]
        if delta != _NO_LINE_DELTA:
            line += delta
        if offset < end:
            return 0 if delta == _NO_LINE_DELTA else line
    return 0


def _line_311(table: bytes, line: int, offset: int) -> int:
    end = 0
    for entry in _ENTRY.findall(table):
        first = entry[0]
        kind = first >> 3 & 15
        if kind in {_NO_COLUMNS, _LONG_FORM}:
            delta = _varint(entry)
            line += -(delta >> 1) if delta & 1 else delta >> 1
        elif _SHORT_FORMS <= kind <= _ONE_LINE_FORMS:
            line += kind - _SHORT_FORMS
        end += ((first & 7) + 1) * 2
        if offset < end:
            return 0 if kind == _NO_LINE else line
    return 0


def _varint(entry: bytes) -> int:
    """Read the number behind the first byte: six bits each, the lowest first, as long as the seventh is set."""
    value = shift = 0
    for byte in entry[1:_MAX_VARINT_END]:
        value |= (byte & 63) << shift
        if not byte & 64:
            break
        shift += 6
    return value
