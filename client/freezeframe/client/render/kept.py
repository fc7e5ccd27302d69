"""The list of snapshots that an agent keeps."""

from __future__ import annotations

from collections.abc import Iterator

from freezeframe.client.render import units
from freezeframe.client.render.document import Column, Paragraph, Section, Table
from freezeframe.client.render.guard import clean
from freezeframe.client.render.values import NOTHING, enum_name
from freezeframe.v1 import service_pb2


def page(answer: service_pb2.ListSnapshotsResponse) -> tuple[Section, ...]:
    """Build a row per snapshot."""
    if not answer.snapshots:
        return (Section(title="", blocks=(Paragraph(text="The agent keeps no snapshot."),)),)
    columns = (
        Column(title="ID"),
        Column(title="TAKEN"),
        Column(title="WHY", flexible=True),
        Column(title="VERDICT"),
        Column(title="SIZE", right=True),
        Column(title="REMARKS", flexible=True),
    )
    return (Section(title="", blocks=(Table(columns=columns, rows=tuple(_row(each) for each in answer.snapshots)),)),)


def brief(answer: service_pb2.ListSnapshotsResponse) -> Iterator[str]:
    """Give an id per line, for loops of a shell."""
    return (f"{clean(each.snapshot_id)}\n" for each in answer.snapshots)


def _row(kept: service_pb2.KeptSnapshot) -> tuple[str, ...]:
    known = bool(kept.manifest.hosts)
    meta = kept.manifest.hosts[0].meta if known else None
    note = meta.note if meta is not None else ""
    remarks = [*(["pinned"] if kept.pinned else []), *([f"damaged: {kept.damage}"] if kept.damage else []), note]
    return (
        kept.snapshot_id,
        meta.started_at if meta is not None else NOTHING,
        (meta.trigger if meta is not None else "") or NOTHING,
        enum_name(kept.manifest.verdict, "code") if kept.manifest.HasField("verdict") else NOTHING,
        units.size(kept.bytes),
        ", ".join(remark for remark in remarks if remark),
    )
