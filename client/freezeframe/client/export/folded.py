"""Folded stacks, one line each: "process;thread;outer;inner 7", as flamegraph.pl, inferno and speedscope read them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from freezeframe.client.export.stacks import Frame, Stacks
from freezeframe.client.render.guard import clean


def render(stacks: Stacks) -> Iterator[str]:
    """Give a line per stack; equal ones are counted together, in the order of their first appearance."""
    counts: Counter[str] = Counter()
    for stack in stacks.stacks:
        parts = (stack.process, stack.owner, *(_frame(frame) for frame in stack.frames))
        counts[";".join(map(_part, parts))] += stack.count
    for line, count in counts.items():
        yield f"{line} {count}\n"


def _frame(frame: Frame) -> str:
    if not frame.line:
        return frame.name
    return f"{frame.name} ({frame.file.rpartition('/')[2]}:{frame.line})"


def _part(text: str) -> str:
    # The format has no way to write its own separator.
    return clean(text).replace(";", ":")
