"""The hops of the path, in its order: client, proxy, router, prefill and decode or engine, their schedulers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from freezeframe.judge.correlate.facts import Client, Connection, Debt, Engine
from freezeframe.judge.model import Hop, Process

_ENGINE_ORDER = ("prefill", "decode", "engine")


def in_flight(connection: Connection) -> bool:
    """Whether a request is on this connection: owed, not taken, or an answer in progress."""
    return connection.owed or connection.debt is Debt.UNDELIVERED or connection.streaming


def find_hops(
    connections: Sequence[Connection],
    clients: Sequence[Client],
    engines: Sequence[Engine],
    routers: Sequence[int],
    processes: dict[int, Process],
) -> tuple[Hop, ...]:
    """Hops that are there; nothing is marked as holder."""
    proxies = tuple(pid for pid, p in processes.items() if p.role is Process.Role.PROXY)
    kinds = [kind for kind in _ENGINE_ORDER if any(e.kind == kind for e in engines)]
    hops = []
    if clients:
        first = ("proxy",) if proxies else ("router",) if routers else tuple(kinds)
        waiting = sum(client.in_flight for client in clients)
        hops.append(
            Hop(
                name="client",
                pids=tuple(client.pid for client in clients if client.pid is not None),
                in_flight=waiting,
                upstream=waiting,
                oldest_age_ms=max((c.oldest_age_ms for c in clients if c.oldest_age_ms is not None), default=None),
                source="sockets",
                next=first,
            )
        )
    behind_proxy = ("router",) if routers else tuple(kinds)
    for name, pids, onward in (("proxy", proxies, behind_proxy), ("router", tuple(routers), tuple(kinds))):
        if pids:
            upstream = legs([c for c in connections if c.client_pid in pids], engines)
            hops.append(_hop(name, pids, connections, upstream=upstream, onward=onward))
    for kind in kinds:
        mine = [e for e in engines if e.kind == kind]
        http = tuple(pid for e in mine for pid in e.http_pids)
        scheduler = scheduler_hop(kind)
        known = [count for e in mine if (count := scheduled(e)) is not None]
        has_scheduler = any(e.scheduler_pids for e in mine)
        count = round(sum(known))
        hops.append(_hop(kind, http, connections, upstream=count, onward=(scheduler,) if has_scheduler else ()))
        if has_scheduler and known:
            pids = tuple(pid for e in mine for pid in e.scheduler_pids)
            hops.append(Hop(name=scheduler, pids=pids, in_flight=count, source="gauges"))
        elif has_scheduler:
            hops.append(Hop(name=scheduler, pids=tuple(pid for e in mine for pid in e.scheduler_pids)))
    return tuple(hops)


def legs(upstream: Iterable[Connection], engines: Sequence[Engine]) -> int:
    """Requests that these upstream connections stand for: with prefill and decode, each has two legs."""
    kind_of = {pid: engine.kind for engine in engines for pid in engine.http_pids}
    counts: dict[str, int] = {}
    for connection in upstream:
        if in_flight(connection):
            kind = kind_of.get(connection.server_pid or 0, "")
            counts[kind] = counts.get(kind, 0) + 1
    pair = max(counts.pop("prefill", 0), counts.pop("decode", 0))
    return pair + sum(counts.values())


def scheduled(engine: Engine) -> float | None:
    """Requests that an engine's scheduler knows of; None when its gauges are not known."""
    gauges = engine.gauges
    return (gauges.running or 0) + (gauges.waiting or 0) + (gauges.handover or 0) if gauges.known else None


def scheduler_hop(kind: str) -> str:
    """Name of the scheduler's hop of an engine of this kind."""
    return "scheduler" if kind == "engine" else f"scheduler of {kind}"


def _hop(
    name: str, pids: tuple[int, ...], connections: Sequence[Connection], *, upstream: int, onward: tuple[str, ...]
) -> Hop:
    mine = [c for c in connections if c.server_pid in pids and in_flight(c)]
    return Hop(
        name=name,
        pids=pids,
        in_flight=len(mine),
        upstream=upstream,
        oldest_age_ms=max((c.age_ms for c in mine if c.owed and c.age_ms is not None), default=None),
        source="sockets",
        next=onward,
    )
