"""Lays sections out as GitHub Markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from freezeframe.client.render import budget
from freezeframe.client.render.document import (
    Block,
    Bullets,
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
from freezeframe.client.render.guard import clean

# What would be markup, a mention or an issue reference; underscores only bind at the edge of a word.
_MARKUP = re.compile(r"[\\`*\[\]<>|~#@]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_EMPHASIS = {Tone.STRONG: "**", Tone.GOOD: "**", Tone.BAD: "**", Tone.DOUBT: "**"}


def render(sections: Sequence[Section], budget_tokens: int | None = None) -> str:
    """Lay out `sections`; under a budget the least important are cut or left out, and it is said which."""
    if budget_tokens is not None:
        sections = budget.within(sections, lambda section: "\n\n".join(_section(section)), budget_tokens)
    return "\n\n".join("\n\n".join(_section(section)) for section in sections if section.blocks) + "\n"


def _section(section: Section) -> list[str]:
    blocks = [_block(block) for block in section.blocks]
    if section.folded:
        return [f"<details><summary>{html.escape(clean(section.title))}</summary>", *blocks, "</details>"]
    return [f"{'####' if section.minor else '###'} {_plain(section.title)}", *blocks] if section.title else blocks


def _block(block: Block) -> str:
    match block:
        case Paragraph():
            mark = _EMPHASIS.get(block.tone, "")
            return f"{mark}{_plain(block.text)}{mark}"
        case Bullets():
            return "\n".join(
                _item(item, f"{number}. " if block.numbered else "- ") for number, item in enumerate(block.items, 1)
            )
        case Table():
            rule = "|".join("---:" if column.right else "---" for column in block.columns)
            rows = [" | ".join(_plain(cell) or " " for cell in row) for row in block.rows]
            titles = " | ".join(column.title.capitalize() for column in block.columns)
            return "\n".join([f"| {titles} |", f"|{rule}|", *(f"| {row} |" for row in rows)])
        case Path():
            return " ▸ ".join(_hop(hop) for hop in block.hops)
        case Lines():
            title = f"{_plain(block.title)}\n\n" if block.title else ""
            return title + _fenced(block.lines)
        case Commands():
            return _fenced(block.commands)


def _item(item: Item, bullet: str) -> str:
    ref = f" (`{clean(item.ref).replace('`', '')}`)" if item.ref else ""
    details = "".join(f"\n{' ' * len(bullet)}- {_plain(detail)}" for detail in item.details)
    command = f"\n{' ' * len(bullet)}{_code(item.command)}" if item.command else ""
    return f"{bullet}{_plain(item.text)}{ref}{details}{command}"


def _code(command: str) -> str:
    """Spell a command as code; one that has backquotes needs longer ones around it."""
    text = clean(command)
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence} {text} {fence}" if len(fence) > 1 else f"{fence}{text}{fence}"


def _hop(hop: PathHop) -> str:
    label = f"{_plain(hop.name)} {hop.in_flight}"
    return f"**{label} (holds them)**" if hop.holds else label


def _plain(text: str) -> str:
    return _MARKUP.sub(lambda match: f"\\{match[0]}" if match[0] != "@" else "&#64;", clean(text))


def _fenced(lines: Sequence[str]) -> str:
    cleaned = [clean(line) for line in lines]
    longest = max((len(run) for line in cleaned for run in re.findall(r"`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return "\n".join([fence, *cleaned, fence])
