"""Requests in flight, as the recorder saw them, else as sockets show them; joined to logs and to the next hop.

The recorder sees a request from both ends of its connection; one record stays, the server's where it has read the
request. A connection that the recorder knows nothing of (it began earlier) has the record that its socket gives: how
long an answer has been owed at least, not what was asked.

The router's log has request ids and ages but no addresses: an id is given to a connection only when both lists have
the same length and their ages, in order, agree. A request is joined to its upstream by its id where both have one, else
by order when the counts that are left on the two hops are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from freezeframe.judge.correlate.facts import Connection, Debt
from freezeframe.judge.correlate.hops import in_flight
from freezeframe.judge.correlate.tasks import name_requests
from freezeframe.judge.model import AsyncioTask, LogRequest, Request, Socket

# Router logs have whole seconds, and the request is read before its line is written.
_LOG_AGE_SLACK_MS = 1_500.0


def find_requests(
    connections: Sequence[Connection],
    sockets: Sequence[Socket],
    log_requests: Sequence[LogRequest],
    routers: Sequence[int],
    kind_of: dict[int, str],
    recorded: Sequence[Request],
    tasks: Sequence[AsyncioTask],
) -> tuple[Request, ...]:
    """All requests in flight, one record each: `upstream` refers to positions in what is given here."""
    by_end: dict[tuple[int | None, int | None], int] = {(s.pid, s.fd): i for i, s in enumerate(sockets)}
    connection_of = _connections_by_socket(connections)
    requests, covered = _recorded(recorded, connections, sockets, by_end, connection_of)
    live = [c for i, c in enumerate(connections) if i not in covered and in_flight(c)]
    requests += [_request(c, sockets) for c in live]
    name_requests(requests, tasks)
    for router in routers:
        down = [i for i, r in enumerate(requests) if r.pid == router and r.side is Request.Side.SERVER]
        _join_log(requests, down, [r for r in log_requests if r.pid == router and not r.finished])
        up = [
            i
            for i, r in enumerate(requests)
            if (r.pid == router and r.side is Request.Side.CLIENT)
            or (r.peer_pid == router and r.side is Request.Side.SERVER and r.pid != router)
        ]
        _join(requests, down, up, kind_of)
    return tuple(requests)


def _connections_by_socket(connections: Sequence[Connection]) -> dict[int, int]:
    found = {}
    for number, connection in enumerate(connections):
        for index in (connection.client_index, connection.server_index):
            if index is not None:
                found[index] = number
    return found


def _recorded(
    recorded: Sequence[Request],
    connections: Sequence[Connection],
    sockets: Sequence[Socket],
    by_end: dict[tuple[int | None, int | None], int],
    connection_of: dict[int, int],
) -> tuple[list[Request], set[int]]:
    """Give the recorder's requests with their peers, one of two ends each, and the connections that they are on."""
    with_sockets = {socket.pid for socket in sockets}
    covered: set[int] = set()
    ends: list[tuple[Request, int | None]] = []
    for request in recorded:
        index = by_end.get((request.pid, request.fd))
        if index is None:
            if request.pid not in with_sockets:
                ends.append((request, None))
            # Else its connection has closed meanwhile, or is the agent's own.
            continue
        number = connection_of.get(index)
        socket = sockets[index]
        peer = socket.peer_pid
        if number is not None:
            covered.add(number)
            c = connections[number]
            peer = c.client_pid if request.side is Request.Side.SERVER else c.server_pid
        ends.append((replace(request, peer_pid=peer, peer_address=socket.remote), number))
    return _one_of_two_ends(ends), covered


def _one_of_two_ends(ends: Sequence[tuple[Request, int | None]]) -> list[Request]:
    """Keep the server's record of what both ends tell, with the age that the client knows: it began there."""
    of_client: dict[int, list[Request]] = {}
    for request, number in ends:
        if number is not None and request.side is Request.Side.CLIENT:
            of_client.setdefault(number, []).append(request)
    for waiting in of_client.values():
        waiting.sort(key=lambda each: each.age_ms)
    kept = []
    # The oldest at the server is the oldest at the client.
    for request, number in sorted(ends, key=lambda end: -end[0].age_ms):
        if number is None:
            kept.append(request)
        elif request.side is Request.Side.SERVER:
            asked = of_client[number].pop() if of_client.get(number) else request
            kept.append(replace(request, age_ms=max(request.age_ms, asked.age_ms)))
    # What no server has read.
    kept += [request for waiting in of_client.values() for request in waiting]
    return kept


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
    if not mine or len(mine) != len(logged) or any(requests[i].request_id for i in mine):
        return
    # Sorting is stable: where ages tie, the order of the log and of the snapshot stay.
    mine = sorted(mine, key=lambda i: -requests[i].age_ms)
    logged = sorted(logged, key=lambda r: -r.age_ms)
    if any(abs(requests[i].age_ms - r.age_ms) > _LOG_AGE_SLACK_MS for i, r in zip(mine, logged, strict=True)):
        return
    for i, entry in zip(mine, logged, strict=True):
        requests[i] = replace(
            requests[i],
            request_id=entry.request_id,
            method=requests[i].method or entry.method,
            path=requests[i].path or entry.path,
            joined_by="order",
        )


def _join(requests: list[Request], down: list[int], up: list[int], kind_of: dict[int, str]) -> None:
    """Refer from each request that a process serves to those that it sent on for it."""
    groups: dict[str, list[int]] = {}
    for j in up:
        server = requests[j].pid if requests[j].side is Request.Side.SERVER else requests[j].peer_pid
        groups.setdefault(kind_of.get(server or 0, ""), []).append(j)
    for group in groups.values():
        by_id: dict[str, list[int]] = {}
        for j in group:
            by_id.setdefault(requests[j].request_id, []).append(j)
        left, joined = [], set()
        for i in down:
            same = by_id.get(requests[i].request_id, []) if requests[i].request_id else []
            # An id that several share, or that came from the log by order, tells nothing here.
            if len(same) == 1 and same[0] not in joined and requests[i].joined_by != "order":
                joined.add(same[0])
                _refer(requests, i, same[0], "id")
            else:
                left.append(i)
        rest = [j for j in group if j not in joined]
        waiting = [i for i in left if not requests[i].streaming] or left
        for chosen in (left, waiting):
            if len(chosen) == len(rest):
                older_first = sorted(chosen, key=lambda i: -requests[i].age_ms)
                for i, j in zip(older_first, sorted(rest, key=lambda j: -requests[j].age_ms), strict=True):
                    _refer(requests, i, j, "order")
                break


def _refer(requests: list[Request], i: int, j: int, how: str) -> None:
    upstream = (*requests[i].upstream, f"requests[{j}]")
    weakest = "order" if "order" in (how, requests[i].joined_by) else how
    requests[i] = replace(requests[i], upstream=upstream, joined_by=weakest)
