"""The one place where bytes of a target become text."""

from __future__ import annotations

import unicodedata

# Letters that change how a line is shown without being seen: bidirectional controls, line and paragraph separators.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn"})


def escape(data: bytes, limit: int = 4096) -> str:
    r"""Decode as UTF-8 and escape what is not printable: "\\x1b", "\\u202e"; cut after `limit` bytes with "…"."""
    cut = data[:limit]
    text = cut.decode("utf-8", "backslashreplace")
    if not text.isprintable():
        text = "".join(character if _is_plain(character) else _escaped(character) for character in text)
    return text + "…" if len(data) > limit else text


def _is_plain(character: str) -> bool:
    return character == " " or (character.isprintable() and unicodedata.category(character) not in _HIDDEN_CATEGORIES)


def _escaped(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode() if character >= "\x80" else f"\\x{ord(character):02x}"
