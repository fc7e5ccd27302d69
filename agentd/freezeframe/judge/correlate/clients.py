"""Attribution: which client sent what, and who gets the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from freezeframe.judge.correlate.facts import Client, Connection, Debt, Engine
from freezeframe.judge.model import Process


def find_clients(
    entry: Sequence[Connection],
    processes: dict[int, Process],
    engines: Sequence[Engine],
    routers: Sequence[int],
    window_ms: float,
) -> tuple[Client, ...]:
    """One per client process or address, most stuck requests first. Strays are marked by `mark_strays`."""
    groups: dict[int | str, list[Connection]] = {}
    for connection in entry:
        key = connection.client_pid if connection.client_pid is not None else connection.client_address
        groups.setdefault(key, []).append(connection)
    hop_of = {pid: engine.kind for engine in engines for pid in engine.http_pids}
    hop_of.update(dict.fromkeys(routers, "router"))
    found = [_client(key, group, processes, hop_of, window_ms) for key, group in groups.items()]
    return tuple(sorted(found, key=lambda c: (-c.stuck, -c.in_flight, c.name)))


def _client(
    key: int | str, group: list[Connection], processes: dict[int, Process], hop_of: dict[int, str], window_ms: float
) -> Client:
    process = processes.get(key) if isinstance(key, int) else None
    pid = key if isinstance(key, int) else None
    stuck = [c for c in group if c.stuck]
    waiting = [c for c in group if c.owed or c.debt is Debt.UNDELIVERED or c.streaming]
    down = [c.bytes_down_delta for c in group if c.bytes_down_delta is not None]
    talks_to = tuple(dict.fromkeys(hop_of.get(c.server_pid or 0, "proxy") for c in group))
    return Client(
        name=client_name(process) if process else f"pid {key}" if pid else str(key),
        pid=pid,
        address=group[0].client_address,
        connections=len(group),
        in_flight=len(waiting),
        stuck=len(stuck),
        streaming=sum(c.streaming for c in group),
        moving=sum(c.moving for c in group),
        oldest_age_ms=max((c.age_ms for c in group if c.owed and c.age_ms is not None), default=None),
        bytes_per_s=sum(down) * 1000 / window_ms if window_ms > 0 and down else None,
        stray=False,
        bypasses_router="router" in hop_of.values() and any(hop not in {"router", "proxy"} for hop in talks_to),
        talks_to=talks_to,
        refs=tuple(ref for c in (stuck or waiting or group)[:4] for ref in c.refs),
    )


def client_name(process: Process) -> str:
    """What people call a process: its script, else its title, else its command."""
    # A title set by the process says more than what its parent was started with.
    own = process.argv if process.argv_source in {"", "own"} else ()
    script = next((a for a in own[1:] if a.endswith((".py", ".js", ".mjs", ".rb", ".sh"))), "")
    if script:
        return script.rpartition("/")[2]
    if "-m" in own[:-1]:
        return own[own.index("-m") + 1]
    words = process.title.split()
    for word in words[1:]:
        if word.endswith(".py"):
            return word.rpartition("/")[2]
    return (words[0].rpartition("/")[2] if words else "") or process.comm or f"pid {process.pid}"


def find_group(clients: Sequence[Client], named: str, usual: Sequence[str] = ()) -> tuple[int | str | None, str]:
    """The client that matters and why: the named one, else a configured one, else whoever owns most stuck requests."""
    if named:
        for client in clients:
            if _is_called(client, named):
                return _key(client), "named"
        return None, f"the client {named!r} that was named has no connection to the path"
    configured = _configured(clients, usual)
    if configured:
        return _key(configured[0]), "named by the configuration"
    stuck = [client for client in clients if client.stuck]
    if not stuck:
        return None, "no client has stuck requests"
    total = sum(client.stuck for client in stuck)
    if stuck[0].stuck * 2 > total:
        return _key(stuck[0]), "most stuck requests"
    names = ", ".join(f"{c.name} {c.stuck}" for c in stuck[:4])
    return None, f"ambiguous: no client owns most of the {total} stuck requests ({names}); name one with --client"


def mark_strays(clients: Sequence[Client], group: int | str | None, usual: Sequence[str] = ()) -> tuple[Client, ...]:
    """Mark the clients that get a stream while the group that matters gets nothing.

    Bytes in answer to bytes of the same window may be scrapes or probes: they make nobody a stray.
    """
    main = next((c for c in clients if group is not None and _key(c) == group), None)
    if main is None or not main.stuck or main.moving:
        return tuple(clients)
    belong = [main, *_configured(clients, usual)]
    return tuple(replace(c, stray=True) if c not in belong and c.streaming and not c.stuck else c for c in clients)


def _is_called(client: Client, name: str) -> bool:
    """Whether what somebody gave, a pid, an address or a title, means this client."""
    return name in {str(client.pid), client.address, client.name}


def _configured(clients: Sequence[Client], usual: Sequence[str]) -> list[Client]:
    return [client for client in clients if any(_is_called(client, name) for name in usual)]


def _key(client: Client) -> int | str:
    return client.pid if client.pid is not None else client.address
