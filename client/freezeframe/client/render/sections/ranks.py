"""The rank table: where the processes of one parallel group stand, equal ones in one row, the minority first."""

from __future__ import annotations

from collections.abc import Sequence

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Column, Paragraph, Table
from freezeframe.client.render.sections.contract import Snapshot
from freezeframe.client.render.values import NOTHING, optional
from freezeframe.judge.labels import folded
from freezeframe.v1 import metric_pb2


def ranks(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show each group of ranks that stand together, in the agent's order, and what there is to debug them with."""
    return (*_table(snapshot), *_traces(snapshot))


def _table(snapshot: Snapshot) -> tuple[Block, ...]:
    if not snapshot.ranks:
        return ()
    rows: dict[int, list[metric_pb2.Rank]] = {}
    for rank in snapshot.ranks:
        rows.setdefault(rank.group, []).append(rank)
    columns = (
        Column(title="RANKS"),
        Column(title="PIDS"),
        Column(title="PHASE"),
        Column(title="STANDS IN", flexible=True),
        Column(title="SECOND LOOK", flexible=True),
        Column(title="CPU", right=True),
        Column(title="NOTE"),
    )
    return (Table(columns=columns, rows=tuple(_row(members) for members in rows.values())),)


def _traces(snapshot: Snapshot) -> tuple[Block, ...]:
    traces = snapshot.debug_traces
    if not traces:
        return ()
    columns = (
        Column(title="PID", right=True),
        Column(title="TO DEBUG WITH"),
        Column(title="AT", flexible=True),
        Column(title="AGE", right=True),
        Column(title="SIZE", right=True),
    )
    rows = tuple(
        (
            str(each.pid),
            each.kind,
            each.path,
            optional(each, "age_ms", units.age),
            optional(each, "size_bytes", units.size),
        )
        for each in traces
    )
    said = [Paragraph(text=line) for each in traces for line in each.text.split("\n") if each.text]
    return (*((Paragraph(text=""),) if snapshot.ranks else ()), Table(columns=columns, rows=rows), *said)


def _row(members: Sequence[metric_pb2.Rank]) -> tuple[str, ...]:
    first = members[0]
    places = tuple(dict.fromkeys(rank.frame for rank in members if rank.frame))
    return (
        folded(rank.rank for rank in members if rank.rank) or NOTHING,
        folded(str(rank.pid) for rank in members),
        first.phase or ("unknown" if first.frame else "not seen"),
        " | ".join(places) or NOTHING,
        _second(members),
        _cpu(members),
        "minority" if first.minority else "",
    )


def _second(members: Sequence[metric_pb2.Rank]) -> str:
    """What the second look adds."""
    seen = [rank for rank in members if rank.HasField("same_at_second_look")]
    if not seen:
        return NOTHING
    if all(rank.same_at_second_look for rank in seen):
        return "same"
    moved = dict.fromkeys(" ".join(filter(None, (r.phase_after, r.frame_after))) for r in seen)
    return " | ".join(filter(None, moved)) or "changed"


def _cpu(members: Sequence[metric_pb2.Rank]) -> str:
    spent = [rank.cpu_ms_delta for rank in members if rank.HasField("cpu_ms_delta")]
    if not spent:
        return NOTHING
    least, most = units.number(min(spent)), units.number(max(spent))
    return f"{least} ms" if least == most else f"{least}-{most} ms"
