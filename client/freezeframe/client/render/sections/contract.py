"""What a section is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from freezeframe.client.render.document import Block, Item, Paragraph, Tone
from freezeframe.client.render.values import enum_name
from freezeframe.v1 import snapshot_pb2

Snapshot = snapshot_pb2.Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionKind:
    """One name that `show` knows."""

    name: str
    title: str
    # Fields of Snapshot that it shows; what JSON prints of it.
    fields: tuple[str, ...]
    # Snapshot -> blocks; no block when there is nothing. Nothing else of it is read but meta, outcomes and `beside`.
    build: Callable[[Snapshot], tuple[Block, ...]]
    # Collectors that would bring it, the usual one first.
    collectors: tuple[str, ...] = ()
    # Fields of Snapshot that its words are from.
    beside: tuple[str, ...] = ()
    # How to get it when no collector of a plain capture brings it.
    otherwise: str = ""


def empty(kind: SectionKind, snapshot: Snapshot) -> tuple[Paragraph, ...]:
    """Say that a section is empty, which collector would bring it, and how that one ended."""
    nothing = f"This snapshot has nothing under {kind.title}."
    outcomes = {outcome.collector: outcome for outcome in snapshot.outcomes}
    for collector in kind.collectors:
        outcome = outcomes.get(collector)
        if outcome is None:
            continue
        status = enum_name(outcome, "status")
        detail = f": {outcome.detail}" if outcome.detail else ""
        said = f"{nothing} {collector} brings it, and ended {status}{detail}."
        hint = (Paragraph(text=f"To mend it: {outcome.hint}", tone=Tone.QUIET),) if outcome.hint else ()
        return (Paragraph(text=said), *hint)
    if kind.collectors:
        version = snapshot.meta.agent_version or "of unknown version"
        return (Paragraph(text=f"{nothing} {kind.collectors[0]} brings it; agent {version} did not run it."),)
    return (Paragraph(text=f"{nothing} {kind.otherwise}".rstrip()),)


def item(text: str, ref: str = "", *details: str) -> Item:
    """Make a bullet; empty details are left out."""
    return Item(text=text, ref=ref, details=tuple(each for each in details if each))
