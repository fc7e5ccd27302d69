"""Snapshots of one or many hosts -> Facts: pure.

Roles, both ends of every connection, who owes the next byte and since when, engines with their gauges, clients with
what they get, hops, requests in flight, and what is not known. May import `judge.model` and the standard library's
data tools alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from freezeframe.judge.correlate.clients import find_clients, find_group, mark_strays
from freezeframe.judge.correlate.connections import FORWARDERS, SERVERS, find_listeners, join_connections
from freezeframe.judge.correlate.edges import sum_edges
from freezeframe.judge.correlate.engines import find_engines
from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.correlate.hops import find_hops
from freezeframe.judge.correlate.joined import Joined
from freezeframe.judge.correlate.keep_alives import with_keep_alives
from freezeframe.judge.correlate.places import find_outcomes, find_places
from freezeframe.judge.correlate.ranks import find_ranks
from freezeframe.judge.correlate.recorded import with_recorded
from freezeframe.judge.correlate.requests import find_requests
from freezeframe.judge.correlate.stacks import main_threads
from freezeframe.judge.correlate.staleness import annotate
from freezeframe.judge.correlate.tasks import refer
from freezeframe.judge.correlate.unknowns import find_unknowns
from freezeframe.judge.model import Meta, Process, Request, Snapshot

__all__ = ["Facts", "correlate", "correlate_joined"]


def correlate(snapshots: Sequence[Snapshot]) -> Facts:
    """Join one host's snapshot up. Processes have their roles already.

    Raises:
        ValueError: not exactly one snapshot was given.
    """
    if len(snapshots) != 1:
        raise ValueError(f"correlating {len(snapshots)} snapshots: join the hosts first")
    return _facts(snapshots[0], None)


def correlate_joined(joined: Joined) -> Facts:
    """Join up what several hosts have told. Processes have their roles already."""
    return _facts(joined.snapshot, joined)


def _facts(snapshot: Snapshot, joined: Joined | None) -> Facts:
    # What an earlier judgement added is made anew.
    known = tuple(replace(r, upstream=(), joined_by="") for r in snapshot.requests if r.source != "socket")
    processes = {p.pid: p for p in snapshot.processes}
    metrics = annotate(snapshot.metrics, processes)
    snapshot = replace(snapshot, requests=known, edges=(), hops=(), metrics=metrics)
    meta = snapshot.meta or Meta()
    window_ms = meta.window_ms
    process_index = {p.pid: i for i, p in enumerate(snapshot.processes)}
    routers = tuple(p.pid for p in snapshot.processes if p.role is Process.Role.ROUTER)
    listeners = find_listeners(snapshot.sockets, processes)
    forwarders = [pid for pid, p in processes.items() if p.role in FORWARDERS]
    connections = with_recorded(
        with_keep_alives(join_connections(snapshot.sockets, processes, listeners, window_ms), forwarders, window_ms),
        snapshot.sockets,
        snapshot.requests,
        snapshot.recorder,
    )
    mains = main_threads(snapshot.python_threads)
    engines = find_engines(snapshot.processes, process_index, snapshot.metrics, mains, connections, window_ms)
    forwarding = {pid for pid, p in processes.items() if p.role in SERVERS}
    entry = tuple(c for c in connections if c.client_pid not in forwarding)
    clients = find_clients(entry, processes, engines, routers, window_ms)
    group, group_reason = find_group(clients, meta.client, meta.usual_clients)
    clients = mark_strays(clients, group, meta.usual_clients)
    kept: tuple[Request, ...] = snapshot.requests
    kind_of = {pid: engine.kind for engine in engines for pid in engine.http_pids}
    requests = find_requests(
        connections, snapshot.sockets, snapshot.log_requests, routers, kind_of, kept, snapshot.asyncio_tasks
    )
    client_pids = [pid for pid, p in processes.items() if p.role is Process.Role.CLIENT]
    return Facts(
        snapshot=snapshot,
        places=find_places(snapshot, joined),
        window_ms=window_ms,
        processes=processes,
        process_index=process_index,
        connections=connections,
        listeners=listeners,
        edges=sum_edges(connections, two_looks=window_ms > 0),
        engines=engines,
        routers=routers,
        clients=clients,
        group=group,
        group_reason=group_reason,
        hops=find_hops(connections, clients, engines, routers, processes),
        requests=requests,
        tasks=refer(snapshot.asyncio_tasks, requests),
        ranks=find_ranks(snapshot.processes, mains),
        unknowns=(
            *find_unknowns(joined.parts if joined else [snapshot], client_pids, window_ms),
            *(joined.unknowns if joined else ()),
        ),
        outcomes=find_outcomes(joined.parts if joined else [snapshot]),
        mains=mains,
    )
