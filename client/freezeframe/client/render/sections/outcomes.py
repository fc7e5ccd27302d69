"""How each collector ended, and every verdict that stands."""

from __future__ import annotations

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Bullets, Column, Table
from freezeframe.client.render.sections import records
from freezeframe.client.render.sections.contract import Snapshot, item
from freezeframe.client.render.values import enum_name, holders, pids


def outcomes(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show a row per collector, then what mends those that fell short."""
    if not snapshot.outcomes:
        return ()
    columns = (
        Column(title="COLLECTOR"),
        Column(title="END"),
        Column(title="TIME", right=True),
        Column(title="LOOKED AT", right=True),
        Column(title="DETAIL", flexible=True),
    )
    rows = tuple(
        (
            each.collector,
            enum_name(each, "status"),
            units.age(each.duration_ms),
            f"{each.items:,}",
            ", ".join(
                part for part in (each.detail, f"missed {pids(each.pids_missed)}" if each.pids_missed else "") if part
            ),
        )
        for each in snapshot.outcomes
    )
    hints = tuple(item(f"{each.collector}: {each.hint}") for each in snapshot.outcomes if each.hint)
    return (Table(columns=columns, rows=rows), *((Bullets(items=hints),) if hints else ()))


def findings(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show every verdict that stands, the principal one first, with its evidence."""
    items = []
    for each in snapshot.findings:
        holder = holders(each)
        details = [f"{it.text} ({records.short(it.ref)})" if it.ref else it.text for it in each.evidence]
        text = (
            f"{enum_name(each, 'code')}, {enum_name(each, 'confidence').lower()} confidence"
            + (f", {each.hop} {holder}".rstrip() if each.hop or holder else "")
            + f", explains {units.count(each.explains, 'request')}: {each.summary}"
        )
        items.append(item(text, "", *details))
    return (Bullets(items=tuple(items), numbered=True),) if items else ()
