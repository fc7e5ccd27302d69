"""Lays sections out as HTML. Tables can be sorted and stacks folded; what is too much is cut, and it is said."""

from __future__ import annotations

import re
from collections.abc import Sequence

from freezeframe.client.render import units
from freezeframe.client.render.document import (
    Block,
    Bullets,
    Column,
    Commands,
    Item,
    Lines,
    Paragraph,
    Path,
    Section,
    Table,
)
from freezeframe.client.render.markup import Child, Element, element, filled, preformatted
from freezeframe.client.render.sections.verdict import SECTION_OF_FIELD

# A browser lays out as much at once; the snapshot has the rest.
MOST_ROWS = 2000
MOST_STACKS = 1000
# In characters, of a cell that may be broken.
_LONG = 20
_FIELD = re.compile(r"[a-z_]+")
_ENDS_WITH_REFERENCE = re.compile(r"(.*) \(([a-z_]+\[\d+\][^()]*)\)", re.DOTALL)


def section(shown: Section, name: str, host: str, *, open_: bool) -> Element:
    """Lay out a section that folds, under the id `host` + `name`."""
    head = element("summary", None, element("h2", None, shown.title), *_count(shown.blocks))
    body = element("div", {"class": "body"}, *blocks(shown.blocks, name, host))
    folding = element("details", {"open": ""} if open_ else None, head, body)
    return element("section", {"id": host + name, "class": "part"}, folding)


def blocks(shown: Sequence[Block], name: str, host: str) -> list[Element]:
    """Lay out the blocks of the section `name`, the first `MOST_STACKS` of its stacks."""
    laid = []
    stacks = 0
    for block in shown:
        stacks += isinstance(block, Lines)
        # Text sets its tables apart by empty lines.
        if (not isinstance(block, Lines) or stacks <= MOST_STACKS) and block != Paragraph(text=""):
            laid.append(_block(block, name, host))
    if stacks > MOST_STACKS:
        laid.append(_cut(MOST_STACKS, stacks, name))
    return laid


def count(shown: Sequence[Block]) -> str:
    """Say how much a section holds; empty where that tells nothing."""
    stacks = sum(isinstance(block, Lines) for block in shown)
    rows = sum(len(block.rows) for block in shown if isinstance(block, Table))
    items = sum(len(block.items) for block in shown if isinstance(block, Bullets))
    return f"{stacks or rows or items:,}" if stacks or rows or items else ""


def _count(shown: Sequence[Block]) -> tuple[Element, ...]:
    said = count(shown)
    return (element("span", {"class": "count"}, said),) if said else ()


def _block(block: Block, name: str, host: str) -> Element:
    match block:
        case Paragraph():
            return element("p", {"class": block.tone.value}, block.text)
        case Bullets():
            return element("ol" if block.numbered else "ul", None, *(_item(item, host) for item in block.items))
        case Table():
            return table(block, name)
        case Path():
            said = (f"{hop.name} {hop.in_flight}{' (holds them)' if hop.holds else ''}" for hop in block.hops)
            return element("p", {"class": "path"}, " ▸ ".join(said))
        case Lines():
            return _stack(block)
        case Commands():
            return preformatted(block.commands)


def _item(item: Item, host: str) -> Element:
    laid = element("li", None, element("bdi", None, item.text))
    if item.ref:
        filled(laid, (" ", _reference(item.ref, host)))
    if item.command:
        laid.append(element("code", {"class": "command"}, item.command))
    if item.details:
        details = element("ul", None, *(_detail(each, host) for each in item.details))
        records = element("details", {"class": "records"}, element("summary", None, "records"), details)
        laid.append(records if item.ref else details)
    return laid


def _detail(text: str, host: str) -> Element:
    match = _ENDS_WITH_REFERENCE.fullmatch(text)
    if match is None:
        return element("li", None, element("bdi", None, text))
    return element("li", None, element("bdi", None, match[1]), " ", _reference(match[2], host))


def _reference(ref: str, host: str) -> Element:
    """Lead to the section that shows the record."""
    field = _FIELD.match(ref)
    name = SECTION_OF_FIELD.get(field[0]) if field else None
    code = element("code", None, ref)
    return element("a", {"href": f"#{host}{name}", "class": "ref"}, code) if name else code


def table(shown: Table, name: str) -> Element:
    """Lay out a table whose cells say by what number they are sorted, where their text alone does not."""
    head = element("tr", None, *(_title(column) for column in shown.columns))
    rows = [
        element("tr", None, *(_cell(cell, column) for cell, column in zip(row, shown.columns, strict=True)))
        for row in shown.rows[:MOST_ROWS]
    ]
    laid = element("table", {"class": "sortable"}, element("thead", None, head), element("tbody", None, *rows))
    # Wider than a small screen, it scrolls; whoever has no mouse must be able to reach it.
    around = element(
        "div", {"class": "scrolls", "tabindex": "0", "role": "region", "aria-label": f"table of {name}"}, laid
    )
    if len(shown.rows) > MOST_ROWS:
        around.append(_cut(MOST_ROWS, len(shown.rows), name))
    return around


def _title(column: Column) -> Element:
    return element("th", {"scope": "col", **({"class": "right"} if column.right else {})}, column.title.lower())


def _cell(text: str, column: Column) -> Element:
    magnitude = units.magnitude(text)
    plain = text.isdecimal() or magnitude is None
    kind = "right" if column.right else "long" if column.flexible and len(text) > _LONG else ""
    return element(
        "td", {**({"class": kind} if kind else {}), **({} if plain else {"data-sort": magnitude or 0.0})}, text
    )


def _stack(block: Lines) -> Element:
    if not block.title:
        return preformatted(block.lines)
    # What it does, then where: the state, then the innermost frame.
    hint = next((line for line in block.lines[1:] if "  " in line), "")
    title: tuple[Child, ...] = (element("bdi", {"class": "whose"}, block.title),)
    if hint:
        title = (*title, element("code", {"class": "hint"}, hint))
    return element("details", {"class": "stack"}, element("summary", None, *title), preformatted(block.lines))


def _cut(shown: int, there: int, name: str) -> Element:
    said = f"{shown:,} of {there:,} shown here; the snapshot has them all: freezeframe show FILE {name}"
    return element("p", {"class": "doubt"}, said)
