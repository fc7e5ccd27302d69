"""Hops of the path, and who talks to whom."""

from __future__ import annotations

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Column, Paragraph, Path, PathHop, Table
from freezeframe.client.render.sections import traces
from freezeframe.client.render.sections.contract import Snapshot
from freezeframe.client.render.values import NOTHING, optional, pid
from freezeframe.v1 import socket_pb2


def hops(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show the path, a row per hop, and a row per edge."""
    if not snapshot.hops and not snapshot.edges:
        return traces.connection_events(snapshot)
    path = Path(hops=tuple(PathHop(name=hop.name, in_flight=hop.in_flight, holds=hop.holds) for hop in snapshot.hops))
    blocks: list[Block] = [path, _hop_table(snapshot)] if snapshot.hops else []
    if snapshot.edges:
        blocks += [Paragraph(text=""), Paragraph(text="Edges:"), _edge_table(snapshot)]
    return (*blocks, *traces.connection_events(snapshot))


def _hop_table(snapshot: Snapshot) -> Table:
    columns = (
        Column(title="HOP"),
        Column(title="IN FLIGHT", right=True),
        Column(title="PASSED ON", right=True),
        Column(title="AT LEAST", right=True),
        Column(title="KNOWN FROM"),
        Column(title="PASSES TO"),
        Column(title="PIDS", flexible=True),
    )
    rows = tuple(
        (
            f"{hop.name} (holds)" if hop.holds else hop.name,
            str(hop.in_flight),
            str(hop.upstream),
            optional(hop, "oldest_age_ms", units.age),
            hop.source or NOTHING,
            ", ".join(hop.next) or NOTHING,
            ", ".join(str(each) for each in hop.pids) or NOTHING,
        )
        for hop in snapshot.hops
    )
    return Table(columns=columns, rows=rows)


def _edge_table(snapshot: Snapshot) -> Table:
    columns = (
        Column(title="CLIENT", flexible=True),
        Column(title="SERVER", flexible=True),
        Column(title="CONN", right=True),
        Column(title="OWED", right=True),
        Column(title="AT LEAST", right=True),
        Column(title="UP", right=True),
        Column(title="DOWN", right=True),
        Column(title="REMARKS", flexible=True),
    )
    rows = tuple(
        (
            pid(edge, "client_pid") if edge.HasField("client_pid") else edge.client_address or NOTHING,
            f"{edge.server_address} pid {edge.server_pid}" if edge.HasField("server_pid") else edge.server_address,
            str(edge.connections),
            str(edge.owed),
            optional(edge, "oldest_owed_age_ms", units.age),
            optional(edge, "bytes_up_delta", units.size),
            optional(edge, "bytes_down_delta", units.size),
            _remarks(edge),
        )
        for edge in snapshot.edges
    )
    return Table(columns=columns, rows=rows)


def _remarks(edge: socket_pb2.Edge) -> str:
    counted = (
        (edge.in_backlog, "not accepted"),
        (edge.unread_by_server, "unread by server"),
        (edge.unread_by_client, "unread by client"),
        (edge.closed_by_server, "closed by server"),
        (edge.closed_by_client, "closed by client"),
        (edge.moving, "moving"),
    )
    return ", ".join(f"{number} {what}" for number, what in counted if number)
