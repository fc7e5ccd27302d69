"""The hosts of a fleet, one line each."""

from __future__ import annotations

from collections.abc import Sequence

from freezeframe.client.render import units
from freezeframe.client.render.document import Column, Section, Table
from freezeframe.client.render.sections import verdict
from freezeframe.client.render.sections.contract import Snapshot
from freezeframe.client.render.values import NOTHING, enum_name
from freezeframe.v1 import file_pb2

_COLUMNS = (
    Column(title="HOST"),
    Column(title="ALONE IT SAYS"),
    Column(title="HOLDER", flexible=True),
    Column(title="TOOK", right=True),
    Column(title="CLOCK AHEAD", right=True),
)


def section(snapshots: Sequence[Snapshot], parts: Sequence[file_pb2.HostPart]) -> Section:
    """What each host says by itself, and how its clock stands against that of who asked."""
    rows = tuple(
        (
            each.meta.host or "unnamed host",
            enum_name(each.verdict, "code") if each.HasField("verdict") else NOTHING,
            verdict.holder(each.verdict) or NOTHING,
            units.age(each.meta.duration_ms),
            _clock(part),
        )
        for each, part in zip(snapshots, parts, strict=True)
    )
    return Section(title="Hosts", blocks=(Table(columns=_COLUMNS, rows=rows),), priority=6)


def _clock(part: file_pb2.HostPart) -> str:
    """By how much it is ahead: "0.002 s ±0.001"."""
    if not part.HasField("ahead_ms"):
        return NOTHING
    return f"{part.ahead_ms / 1000:.3f} s ±{part.ahead_error_ms / 1000:.3f}"
