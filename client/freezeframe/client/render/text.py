"""Lays sections out as plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from freezeframe.client.render import budget
from freezeframe.client.render.document import (
    Block,
    Bullets,
    Column,
    Commands,
    Item,
    Lines,
    Paragraph,
    Path,
    PathHop,
    Section,
    Table,
    Tone,
)
from freezeframe.client.render.guard import clean, columns
from freezeframe.client.render.style import Style
from freezeframe.client.render.values import NOTHING

_GAP = "  "
_LEAST_COLUMN = 8
_USUAL_WIDTH = 80


def render(sections: Sequence[Section], style: Style, budget_tokens: int | None = None) -> str:
    """Lay out `sections`; under a budget the least important are cut or left out, and it is said which."""
    if budget_tokens is not None:
        sections = budget.within(sections, lambda section: "\n".join(_section(section, style)), budget_tokens)
    laid = [_section(section, style) for section in sections]
    return "\n\n".join("\n".join(lines) for lines in laid if lines) + "\n"


def _section(section: Section, style: Style) -> list[str]:
    lines = [style.paint(clean(section.title), Tone.STRONG)] if section.title else []
    indent = _GAP if section.title else ""
    for block in section.blocks:
        lines += _block(block, style, indent)
    return lines


def _block(block: Block, style: Style, indent: str) -> list[str]:
    match block:
        case Paragraph():
            return [style.paint(line, block.tone) for line in _wrap(clean(block.text), style, indent, indent)]
        case Bullets():
            return [
                line
                for number, item in enumerate(block.items, 1)
                for line in _item(item, f"{number}. " if block.numbered else "- ", style, indent)
            ]
        case Table():
            return _table(block, style, indent)
        case Path():
            return _path(block, style, indent)
        case Lines():
            title = [indent + clean(block.title)] if block.title else []
            return [*title, *(f"{indent}{_GAP}{clean(line)}" for line in block.lines)]
        case Commands():
            return [indent + clean(command) for command in block.commands]


def _wrap(text: str, style: Style, first: str, rest: str) -> list[str]:
    # A path or an id is never broken: it must still be copied.
    return textwrap.wrap(
        text, style.width, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    ) or [first.rstrip()]


def _item(item: Item, bullet: str, style: Style, indent: str) -> list[str]:
    text = clean(item.text)
    ref = f"({clean(item.ref)})" if item.ref else ""
    rest = indent + " " * len(bullet)
    lines = _wrap(f"{text} {ref}".rstrip(), style, indent + bullet, rest)
    if ref and lines[-1].endswith(ref):
        lines[-1] = lines[-1].removesuffix(ref) + style.paint(ref, Tone.QUIET)
    for detail in item.details:
        lines += _wrap(clean(detail), style, rest, rest + _GAP)
    return [*lines, rest + clean(item.command)] if item.command else lines


def _path(path: Path, style: Style, indent: str) -> list[str]:
    lines: list[str] = []
    plain = 0
    for hop in path.hops:
        label = _hop(hop)
        shown = style.mark(label) if hop.holds else label
        if lines and plain + 3 + columns(label) <= style.width:
            lines[-1] += f" {style.arrow} {shown}"
            plain += 3 + columns(label)
        else:
            start = f"{indent}{_GAP}{style.arrow} " if lines else indent
            lines.append(start + shown)
            plain = columns(start + label)
    return lines


def _hop(hop: PathHop) -> str:
    label = f"{clean(hop.name)} {hop.in_flight}"
    return f"[{label}]" if hop.holds else label


def _table(table: Table, style: Style, indent: str) -> list[str]:
    rows = [tuple(clean(cell) for cell in row) for row in table.rows]
    titles = tuple(column.title for column in table.columns)
    widths = [max(columns(cell) for cell in cells) for cells in zip(titles, *rows, strict=True)]
    if style.table_width is not None:
        room = style.table_width - len(indent)
        widths = _squeezed(widths, table.columns, room)
        # On a screen of the usual width little runs over, and rows that stand below each other compare better.
        if style.table_width < _USUAL_WIDTH and _width(widths) > room:
            return [line for row in rows for line in _record(titles, row, style, indent)]
    header = style.paint(_row(titles, widths, table.columns, style), Tone.QUIET)
    return [indent + line for line in (header, *(_row(row, widths, table.columns, style) for row in rows))]


def _record(titles: Sequence[str], row: Sequence[str], style: Style, indent: str) -> list[str]:
    """Lay out one row whole: what it is about, then title and value of the others, as many to a line as fit."""
    lines = _wrap(row[0] or NOTHING, style, indent, indent + _GAP)
    line = ""
    for title, cell in zip(titles[1:], row[1:], strict=True):
        if not cell:
            continue
        pair = f"{title} {cell}"
        if line and columns(indent + _GAP + line + _GAP + pair) > style.width:
            lines += _wrap(line, style, indent + _GAP, indent + _GAP * 2)
            line = ""
        line += f"{_GAP}{pair}" if line else pair
    return [*lines, *_wrap(line, style, indent + _GAP, indent + _GAP * 2)] if line else lines


def _width(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _squeezed(widths: list[int], shapes: Sequence[Column], room: int) -> list[int]:
    """Narrow the widest flexible column, again and again, until the row fits or nothing can give."""
    widths = list(widths)
    excess = _width(widths) - room
    flexible = [index for index, shape in enumerate(shapes) if shape.flexible]
    while excess > 0 and flexible:
        ordered = sorted(flexible, key=lambda index: -widths[index])
        widest = ordered[0]
        floor = max(_LEAST_COLUMN, len(shapes[widest].title))
        following = max(widths[ordered[1]] if len(ordered) > 1 else 0, floor)
        if widths[widest] <= floor:
            break
        step = min(excess, max(1, widths[widest] - following), widths[widest] - floor)
        widths[widest] -= step
        excess -= step
    return widths


def _row(cells: Sequence[str], widths: Sequence[int], shapes: Sequence[Column], style: Style) -> str:
    return _GAP.join(
        _cell(cell, width, shape, style) for cell, width, shape in zip(cells, widths, shapes, strict=True)
    ).rstrip()


def _cell(cell: str, width: int, shape: Column, style: Style) -> str:
    taken = columns(cell)
    if taken > width:
        cell = _cut(cell, width, style.ellipsis)
        taken = columns(cell)
    padding = " " * (width - taken)
    return padding + cell if shape.right else cell + padding


def _cut(cell: str, width: int, ellipsis: str) -> str:
    room = width - len(ellipsis)
    kept = ""
    for character in cell:
        room -= columns(character)
        if room < 0:
            break
        kept += character
    return kept + ellipsis
