"""What logs say, and how much of them was read."""

from __future__ import annotations

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Bullets, Column, Item, Paragraph, Table
from freezeframe.client.render.sections.contract import Snapshot, item
from freezeframe.client.render.values import NOTHING, optional
from freezeframe.v1 import log_pb2


def logs(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show findings first, then the sources they come from."""
    blocks: list[Block] = []
    if snapshot.log_findings:
        blocks.append(Bullets(items=tuple(_finding(each) for each in snapshot.log_findings)))
    if snapshot.log_sources:
        blocks += [*((Paragraph(text=""),) if blocks else ()), Paragraph(text="Read:"), _sources(snapshot)]
    return tuple(blocks)


def _finding(finding: log_pb2.LogFinding) -> Item:
    last = f", last {units.age(finding.last_age_ms)} ago" if finding.HasField("last_age_ms") else ""
    captured = ", ".join(f"{key}={finding.captured[key]}" for key in sorted(finding.captured))
    text = f"{finding.pattern} (pid {finding.pid}): {finding.count} times{last}"
    return item(text, "", finding.meaning, captured)


def _sources(snapshot: Snapshot) -> Table:
    columns = (
        Column(title="PID", right=True),
        Column(title="KIND"),
        Column(title="LOG", flexible=True),
        Column(title="READ", right=True),
        Column(title="LINES", right=True),
        Column(title="COVERS", right=True),
        Column(title="NOT READ", flexible=True),
    )
    rows = tuple(
        (
            str(each.pid),
            each.kind or NOTHING,
            each.name,
            units.size(each.bytes_read),
            f"{each.lines:,}",
            optional(each, "covers_ms", units.age),
            _not_read(each),
        )
        for each in snapshot.log_sources
    )
    return Table(columns=columns, rows=rows)


def _not_read(source: log_pb2.LogSource) -> str:
    said = [source.error] if source.error else []
    if source.bytes_skipped:
        said.append(f"{units.size(source.bytes_skipped)} before it")
    if source.lines_cut:
        said.append(f"{units.count(source.lines_cut, 'line')} cut")
    return ", ".join(said)
