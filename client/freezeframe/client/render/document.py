"""What is to be said, apart from how: sections of blocks that text and Markdown lay out.

Strings in blocks are raw; the layouts pass each through the guard, so that nothing can go round it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Tone(Enum):
    """How a paragraph is meant."""

    PLAIN = "plain"
    STRONG = "strong"
    GOOD = "good"
    BAD = "bad"
    DOUBT = "doubt"
    QUIET = "quiet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """Prose, wrapped."""

    text: str
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One bullet."""

    text: str
    # Where it stands in the snapshot.
    ref: str = ""
    # Lines under it.
    details: tuple[str, ...] = ()
    # A command under it, to copy; never wrapped. Empty when there is none.
    command: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullets:
    """A list."""

    items: tuple[Item, ...]
    numbered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    title: str
    right: bool = False
    # May be cut where the table is wider than the screen.
    flexible: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathHop:
    """One hop of the path line."""

    name: str
    in_flight: int
    holds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The hop line."""

    hops: tuple[PathHop, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """Lines that keep their shape: stacks."""

    title: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Commands to copy; never cut."""

    commands: tuple[str, ...]


Block = Paragraph | Bullets | Table | Path | Lines | Commands


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Blocks under one title (none for the head of a page)."""

    title: str
    blocks: tuple[Block, ...]
    # Under a budget the highest numbers go first; 0 always stays.
    priority: int = 0
    # Markdown shows its title alone until a reader opens it.
    folded: bool = False
    # It belongs to the one before it.
    minor: bool = False
