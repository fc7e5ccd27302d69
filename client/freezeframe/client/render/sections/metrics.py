"""Gauges and counters with their age and what is known against them, and how each endpoint answered."""

from __future__ import annotations

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Column, Paragraph, Table
from freezeframe.client.render.sections.contract import Snapshot
from freezeframe.client.render.values import NOTHING, optional
from freezeframe.v1 import metric_pb2


def metrics(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show endpoints first: a gauge is worth what its source is worth."""
    blocks: list[Block] = []
    if snapshot.endpoints:
        blocks.append(_endpoints(snapshot))
    if snapshot.metrics:
        notes = list(dict.fromkeys(each.note for each in snapshot.metrics if each.note))
        blocks += [*((Paragraph(text=""),) if blocks else ()), _samples(snapshot, notes)]
        blocks += [Paragraph(text=f"[{number}] {note}.") for number, note in enumerate(notes, 1)]
    return tuple(blocks)


def _endpoints(snapshot: Snapshot) -> Table:
    columns = (
        Column(title="PID", right=True),
        Column(title="ENDPOINT", flexible=True),
        Column(title="ANSWER", flexible=True),
        Column(title="AFTER", right=True),
        Column(title="PROVES"),
    )
    rows = tuple(
        (
            str(each.pid),
            f"{each.address}{each.path}",
            each.error or f"HTTP {each.status}",
            units.age(each.duration_ms),
            each.purpose or NOTHING,
        )
        for each in snapshot.endpoints
    )
    return Table(columns=columns, rows=rows)


def _samples(snapshot: Snapshot, notes: list[str]) -> Table:
    columns = (
        Column(title="PID", right=True),
        Column(title="METRIC", flexible=True),
        Column(title="VALUE", right=True),
        Column(title="CHANGE", right=True),
        Column(title="AGE", right=True),
        Column(title="SOURCE", flexible=True),
    )
    rows = tuple(
        (
            str(each.pid),
            _name(each),
            units.number(each.value) + (f" [{notes.index(each.note) + 1}]" if each.note else ""),
            optional(each, "delta", lambda value: ("+" if value > 0 else "") + units.number(value)),
            optional(each, "age_ms", units.age) if each.HasField("age_ms") else "unknown",
            each.source or NOTHING,
        )
        for each in snapshot.metrics
    )
    return Table(columns=columns, rows=rows)


def _name(each: metric_pb2.Metric) -> str:
    labels = ", ".join(f"{key}={each.labels[key]}" for key in sorted(each.labels))
    return f"{each.name}{{{labels}}}" if labels else each.name
