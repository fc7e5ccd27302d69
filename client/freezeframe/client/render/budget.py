"""Pages that fit a number of tokens: the least important goes first, and what went is said.

Tokens are estimated, since every model counts its own: three ASCII characters are one token, any other character is one
by itself. Prose takes fewer (about four characters each), stacks, addresses and numbers about as many: a page within
its budget is within it for the models people use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from freezeframe.client.render.document import Block, Bullets, Lines, Paragraph, Section, Table, Tone

_ASCII_PER_TOKEN = 3

# How a layout spells one section.
Lay = Callable[[Section], str]


def tokens(text: str) -> int:
    """Estimate the tokens of `text`."""
    plain = len(text) if text.isascii() else sum(character.isascii() for character in text)
    return math.ceil(plain / _ASCII_PER_TOKEN) + len(text) - plain


def within(sections: Sequence[Section], lay: Lay, budget: int) -> tuple[Section, ...]:
    """Cut `sections` to `budget` tokens; those of priority 0 stay whole, whatever they take."""
    room = budget
    while True:
        kept = _fitting(sections, lay, room)
        excess = sum(_cost(lay, section) for section in kept) - budget
        # The sentence that says what went finds its own room.
        if excess <= 0 or room <= 0:
            return kept
        room -= excess


def _fitting(sections: Sequence[Section], lay: Lay, room: int) -> tuple[Section, ...]:
    kept: dict[int, Section] = {}
    short: dict[int, str] = {}
    left_out: dict[int, str] = {}
    for index in sorted(range(len(sections)), key=lambda each: sections[each].priority):
        section = sections[index]
        units = _units(section)
        shown = units if section.priority == 0 else _most(section, units, lay, room)
        if shown:
            kept[index] = _first(section, shown)
            room -= _cost(lay, kept[index])
        if shown < units:
            # Nothing that matters less fills what is left.
            room = 0
            # What has no title closes a page.
            name = section.title.lower() or "host and time"
            (short if shown else left_out)[index] = f"{name} ({shown} of {units} shown)" if shown else name
    pages = [kept[index] for index in sorted(kept)]
    said = [short[index] for index in sorted(short)]
    if left_out:
        said.append(f"left out: {', '.join(left_out[index] for index in sorted(left_out))}")
    if said:
        text = f"Cut to fit the budget: {'; '.join(said)}."
        pages.append(Section(title="", blocks=(Paragraph(text=text, tone=Tone.QUIET),)))
    return tuple(pages)


def _cost(lay: Lay, section: Section) -> int:
    # Between two sections stand two line ends.
    return tokens(lay(section) + "\n\n")


def _most(section: Section, units: int, lay: Lay, room: int) -> int:
    """Count the units of a section, from its first one, that fit."""
    low, high = 0, units
    while low < high:
        middle = (low + high + 1) // 2
        if _cost(lay, _first(section, middle)) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def _units(section: Section) -> int:
    return sum(_size(block) for block in section.blocks)


def _size(block: Block) -> int:
    match block:
        case Bullets():
            return len(block.items)
        case Table():
            return len(block.rows)
        case Lines():
            return len(block.lines)
        case _:
            return 1


def _first(section: Section, units: int) -> Section:
    """Keep the first items, rows and lines of a section."""
    blocks: list[Block] = []
    for block in section.blocks:
        if units <= 0:
            break
        blocks.append(_start(block, units))
        units -= _size(block)
    return replace(section, blocks=tuple(blocks))


def _start(block: Block, units: int) -> Block:
    match block:
        case Bullets():
            return replace(block, items=block.items[:units])
        case Table():
            return replace(block, rows=block.rows[:units])
        case Lines():
            return replace(block, lines=block.lines[:units])
        case _:
            return block
