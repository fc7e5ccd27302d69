"""What the recorder knows of a connection and its socket does not tell: whether a quiet one owes the rest of an answer.

To a socket an answer that stalled and an idle keep-alive connection look alike. The recorder has seen the answer begin,
and its end or that it has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from freezeframe.judge.correlate.facts import Connection, Debt
from freezeframe.judge.correlate.thresholds import LONG_MS
from freezeframe.judge.model import RecorderState, Request, Socket

# Debts on which the recorder has the better word.
_UNSURE = frozenset({Debt.NONE, Debt.UNKNOWN})


def with_recorded(
    connections: Sequence[Connection],
    sockets: Sequence[Socket],
    requests: Sequence[Request],
    recorder: RecorderState | None,
) -> tuple[Connection, ...]:
    """Connections with the debts that the recorder has seen; all as they are where it brought nothing."""
    if recorder is None:
        return tuple(connections)
    kept = [request for request in requests if request.source == "recorder" and request.closed_age_ms is None]
    in_flight = {(request.pid, request.fd): request for request in kept if request.protocol == "http/1.1"}
    upgraded = {(request.pid, request.fd) for request in kept if request.protocol == "websocket"}
    resting = {(end.pid, end.fd) for end in recorder.resting}
    judged = []
    for connection in connections:
        ends = _ends(connection, sockets)
        if any(end in upgraded for end in ends):
            judged.append(replace(connection, upgraded=True))
        else:
            judged.append(_judged(connection, ends, in_flight, resting))
    return tuple(judged)


def _ends(connection: Connection, sockets: Sequence[Socket]) -> list[tuple[int | None, int | None]]:
    """Process and descriptor of the server's end, then of the client's, as far as they are on this host."""
    indexes = (connection.server_index, connection.client_index)
    return [(sockets[index].pid, sockets[index].fd) for index in indexes if index is not None]


def _judged(
    connection: Connection,
    ends: list[tuple[int | None, int | None]],
    in_flight: dict[tuple[int | None, int | None], Request],
    resting: set[tuple[int, int]],
) -> Connection:
    if connection.debt not in _UNSURE:
        return connection
    # The server's word on what it has read counts; where it is on another host, the client's on what it waits for.
    request = next((in_flight[end] for end in ends if end in in_flight), None)
    # Where one end has seen an answer end, that the other one has missed it must not make an idle connection owe.
    over = request is None or (request.streaming and not connection.moving)
    if over and any(end in resting for end in ends):
        return replace(connection, rests=True, debt=Debt.NONE)
    if request is None or request.arriving or connection.moving:
        return connection
    at_server = request.side is Request.Side.SERVER
    if not request.streaming:
        age_ms = request.last_in_age_ms if at_server else request.last_out_age_ms
        return replace(connection, debt=Debt.ANSWER, age_ms=age_ms)
    age_ms = request.last_out_age_ms if at_server else request.last_in_age_ms
    # A slow stream pauses, too.
    if age_ms is None or age_ms < LONG_MS:
        return connection
    return replace(connection, debt=Debt.ANSWER, age_ms=age_ms, broken_off=True)
