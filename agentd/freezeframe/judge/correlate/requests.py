"""Requests in flight as sockets show them, joined to the router's log and to the next hop as far as that can be.

A socket tells how long an answer has been owed at least, not what was asked. The router's log has request ids and
ages but no addresses: an id is given to a connection only when both lists have the same length and their ages, in
order, agree. A request is joined to its upstream by order when the counts of the two hops are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from freezeframe.judge.correlate.facts import Connection, Debt
from freezeframe.judge.correlate.hops import in_flight
from freezeframe.judge.model import LogRequest, Request, Socket

# Router logs have whole seconds, and the request is read before its line is written.
_LOG_AGE_SLACK_MS = 1_500.0


def find_requests(
    connections: Sequence[Connection],
    sockets: Sequence[Socket],
    log_requests: Sequence[LogRequest],
    routers: Sequence[int],
    kind_of: dict[int, str],
    first: int,
) -> tuple[Request, ...]:
    """Requests in flight, as the server sees them where it is on this host.

    `first` is the position of the first one in the snapshot: `upstream` refers to positions.
    """
    live = [c for c in connections if in_flight(c)]
    requests = [_request(c, sockets) for c in live]
    for router in routers:
        mine = [i for i, c in enumerate(live) if c.server_pid == router]
        _join_log(requests, mine, [r for r in log_requests if r.pid == router and not r.finished])
        waiting = [i for i in mine if live[i].owed]
        groups: dict[str, list[int]] = {}
        for i, connection in enumerate(live):
            if connection.client_pid == router and connection.owed:
                groups.setdefault(kind_of.get(connection.server_pid or 0, ""), []).append(i)
        for group in groups.values():
            if len(group) == len(waiting):
                _join_upstream(requests, waiting, group, first)
    return tuple(requests)


def _request(connection: Connection, sockets: Sequence[Socket]) -> Request:
    c = sockets[connection.client_index] if connection.client_index is not None else None
    s = sockets[connection.server_index] if connection.server_index is not None else None
    at_server = s is not None
    own = s or c
    return Request(
        pid=connection.server_pid if at_server else connection.client_pid,
        fd=own.fd if own else None,
        side=Request.Side.SERVER if at_server else Request.Side.CLIENT,
        age_ms=connection.age_ms or 0.0,
        at_least=True,
        last_in_age_ms=own.last_in_age_ms if own else None,
        last_out_age_ms=own.last_out_age_ms if own else None,
        streaming=connection.streaming or connection.debt is Debt.UNDELIVERED,
        peer_pid=connection.client_pid if at_server else connection.server_pid,
        peer_address=(s.remote if s else c.remote if c else ""),
        source="socket",
    )


def _join_log(requests: list[Request], mine: list[int], logged: list[LogRequest]) -> None:
    if not mine or len(mine) != len(logged):
        return
    # Sorting is stable: where ages tie, the order of the log and of the snapshot stay.
    mine = sorted(mine, key=lambda i: -requests[i].age_ms)
    logged = sorted(logged, key=lambda r: -r.age_ms)
    if any(abs(requests[i].age_ms - r.age_ms) > _LOG_AGE_SLACK_MS for i, r in zip(mine, logged, strict=True)):
        return
    for i, entry in zip(mine, logged, strict=True):
        requests[i] = replace(
            requests[i], request_id=entry.request_id, method=entry.method, path=entry.path, joined_by="order"
        )


def _join_upstream(requests: list[Request], waiting: list[int], group: list[int], first: int) -> None:
    down = sorted(waiting, key=lambda i: -requests[i].age_ms)
    up = sorted(group, key=lambda i: -requests[i].age_ms)
    for i, j in zip(down, up, strict=True):
        refs = (*requests[i].upstream, f"requests[{first + j}]")
        requests[i] = replace(requests[i], upstream=refs, joined_by=requests[i].joined_by or "order")
