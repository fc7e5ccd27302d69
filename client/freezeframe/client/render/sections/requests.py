"""Requests in flight, and those that the router's log started and never finished."""

from __future__ import annotations

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Column, Paragraph, Table
from freezeframe.client.render.sections.contract import Snapshot
from freezeframe.client.render.values import NOTHING, enum_name, optional, pid


def requests(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show the oldest first."""
    blocks: list[Block] = []
    if snapshot.requests:
        blocks.append(_in_flight(snapshot))
    if snapshot.log_requests:
        blocks += [*((Paragraph(text=""),) if blocks else ()), Paragraph(text="From logs:"), _logged(snapshot)]
    if snapshot.HasField("recorder"):
        blocks += [*((Paragraph(text=""),) if blocks else ()), Paragraph(text=_recorder(snapshot))]
    return tuple(blocks)


def _in_flight(snapshot: Snapshot) -> Table:
    columns = (
        Column(title="PID", right=True),
        Column(title="FD", right=True),
        Column(title="SIDE"),
        Column(title="REQUEST ID", flexible=True),
        Column(title="CALL", flexible=True),
        Column(title="AGE", right=True),
        Column(title="LAST IN", right=True),
        Column(title="LAST OUT", right=True),
        Column(title="PEER", flexible=True),
        Column(title="FROM"),
    )
    rows = tuple(
        (
            pid(each),
            pid(each, "fd"),
            enum_name(each, "side").lower(),
            each.request_id or NOTHING,
            f"{each.method} {each.path}".strip() or NOTHING,
            ("at least " if each.at_least else "") + units.age(each.age_ms),
            optional(each, "last_in_age_ms", units.age),
            optional(each, "last_out_age_ms", units.age),
            f"pid {each.peer_pid}" if each.HasField("peer_pid") else each.peer_address or NOTHING,
            each.source or NOTHING,
        )
        for each in sorted(snapshot.requests, key=lambda each: -each.age_ms)
    )
    return Table(columns=columns, rows=rows)


def _recorder(snapshot: Snapshot) -> str:
    """One sentence: since when it watches, and what it lost."""
    state = snapshot.recorder
    lost = [
        f"{number:.0f} {what}"
        for number, what in (
            (state.lost_requests, "requests"),
            (state.lost_connections, "connections"),
            (state.lost_heads, "heads"),
            (state.lost_processes, "processes"),
            (state.lost_streams, "streams"),
        )
        if number
    ]
    return (
        f"Recorder: armed {units.age(state.armed_ms)} ago, {state.requests_seen:.0f} requests seen, "
        f"{state.connections} of {state.max_connections} connections kept, no room for {', '.join(lost) or 'nothing'}."
    ).replace("no room for nothing", "nothing lost")


def _logged(snapshot: Snapshot) -> Table:
    columns = (
        Column(title="LOG OF", right=True),
        Column(title="REQUEST ID", flexible=True),
        Column(title="CALL", flexible=True),
        Column(title="STARTED", right=True),
        Column(title="STATE"),
        Column(title="TO HEADERS", right=True),
    )
    rows = tuple(
        (
            f"pid {each.pid}",
            each.request_id or NOTHING,
            f"{each.method} {each.path}".strip() or NOTHING,
            f"{units.age(each.age_ms)} ago",
            f"finished, status {each.status}" if each.finished else "no end",
            optional(each, "latency_ms", units.age),
        )
        for each in sorted(snapshot.log_requests, key=lambda each: (each.finished, -each.age_ms))
    )
    return Table(columns=columns, rows=rows)
