"""Connections summed up: one edge per client process, or address, and server process."""

from __future__ import annotations

from collections.abc import Iterable

from freezeframe.judge.correlate.facts import Connection, Debt
from freezeframe.judge.model import Edge


def sum_edges(connections: Iterable[Connection], *, two_looks: bool) -> tuple[Edge, ...]:
    """Edges, in the order in which their first connection stands in the snapshot."""
    groups: dict[tuple[int | str, int | str], list[Connection]] = {}
    for connection in connections:
        client = connection.client_pid if connection.client_pid is not None else connection.client_address
        server = connection.server_pid if connection.server_pid is not None else connection.server_address
        groups.setdefault((client, server), []).append(connection)
    return tuple(_edge(group, two_looks=two_looks) for group in groups.values())


def _edge(group: list[Connection], *, two_looks: bool) -> Edge:
    first = group[0]
    owed = [c for c in group if c.owed]
    return Edge(
        client_pid=first.client_pid,
        client_address="" if first.client_pid is not None else first.client_address,
        server_pid=first.server_pid,
        server_address=first.server_address,
        connections=len(group),
        owed=len(owed),
        oldest_owed_age_ms=max((c.age_ms for c in owed if c.age_ms is not None), default=None),
        bytes_up_delta=_total(c.bytes_up_delta for c in group) if two_looks else None,
        bytes_down_delta=_total(c.bytes_down_delta for c in group) if two_looks else None,
        moving=sum(c.moving for c in group) if two_looks else None,
        unread_by_server=sum(c.debt is Debt.UNREAD for c in group),
        unread_by_client=sum(c.debt is Debt.UNDELIVERED for c in group),
        closed_by_server=sum(c.closed_by_server for c in group),
        closed_by_client=sum(c.closed_by_client for c in group),
        in_backlog=sum(c.debt is Debt.UNACCEPTED for c in group),
    )


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
