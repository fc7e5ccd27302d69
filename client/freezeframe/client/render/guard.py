r"""The one place through which text from a target passes before it is shown.

The agent escapes too; a client must not rely on that, since a file can come from anybody. Control characters (escape
sequences, newlines), bidirectional controls, invisible formatting and unassigned characters become "\x1b", "\u202e".
"""

from __future__ import annotations

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_BYTE = 0x100
_WIDE_PLANE = 0x10000


def clean(text: str) -> str:
    """Escape what could move the cursor, colour the screen or change the order of what is read; one line comes out."""
    if text.isprintable():
        return text
    return "".join(character if _is_plain(character) else _escaped(character) for character in text)


def clean_json(text: str) -> str:
    r"""Escape the same characters in a piece of JSON as "\u202e", which a parser turns back: nothing is lost.

    Control characters below 0x20 are no concern: JSON has them escaped already, or as its own white space.
    """
    if text.isprintable():
        return text
    return "".join(c if c < " " or _is_plain(c) else _json_escaped(c) for c in text)


def columns(text: str) -> int:
    """Count the columns of a terminal that `text` takes."""
    if text.isascii():
        return len(text)
    return sum(_columns(character) for character in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _is_plain(character: str) -> bool:
    return character == " " or unicodedata.category(character) not in _HIDDEN


def _escaped(character: str) -> str:
    number = ord(character)
    if number < _BYTE:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < _WIDE_PLANE else f"\\U{number:08x}"


def _json_escaped(character: str) -> str:
    number = ord(character)
    if number < _WIDE_PLANE:
        return f"\\u{number:04x}"
    number -= _WIDE_PLANE
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"
