"""How verdicts spell numbers, processes and references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from freezeframe.judge.correlate.clients import client_name
from freezeframe.judge.correlate.connections import FORWARDERS
from freezeframe.judge.correlate.facts import Connection, Facts
from freezeframe.judge.model import Evidence

_TENTHS_BELOW_MS = 10_000
_SECONDS_BELOW_MS = 600_000

# References per fact: enough to look at, few enough to read.
_REFS = 6

# Proxies and routers that are followed back to the clients.
_FORWARDERS_IN_A_ROW = 4


def seconds(age_ms: float | None) -> str:
    """An age as people say it: "0.3 s", "41 s", "12 min"."""
    if age_ms is None:
        return "of unknown age"
    if age_ms < _TENTHS_BELOW_MS:
        return f"{age_ms / 1000:.1f} s"
    if age_ms < _SECONDS_BELOW_MS:
        return f"{age_ms / 1000:.0f} s"
    return f"{age_ms / 60_000:.0f} min"


def count(number: float, noun: str) -> str:
    """Number and noun: "1 request", "30 requests"."""
    return f"{number:.0f} {noun}" if number == 1 else f"{number:.0f} {noun}s"


def process(facts: Facts, pid: int) -> str:
    """Name and pid: "harness.py (pid 99)"."""
    known = facts.processes.get(pid)
    return f"{client_name(known)} (pid {pid})" if known else f"pid {pid}"


def engine_name(kind: str) -> str:
    """How a sentence calls an engine: "engine", "prefill engine"."""
    return "engine" if kind == "engine" else f"{kind} engine"


def who(facts: Facts, connections: Iterable[Connection]) -> str:
    """Who waits for these, most requests first: "harness.py (pid 99) and 2 others".

    Routers and proxies wait for their clients.
    """
    counts = Counter(c.client_address if c.client_pid is None else c.client_pid for c in _in_front(facts, connections))
    names = [key if isinstance(key, str) else process(facts, key) for key, _ in counts.most_common()]
    if not names:
        return "nobody"
    others = len(names) - 1
    return names[0] if not others else f"{names[0]} and {count(others, 'other')}"


def _in_front(facts: Facts, connections: Iterable[Connection]) -> list[Connection]:
    found = list(connections)
    for _ in range(_FORWARDERS_IN_A_ROW):
        forwarders = {pid for pid in {c.client_pid for c in found} if forwards(facts, pid)}
        pids = [pid for pid in forwarders if pid is not None]
        behind = [c for c in facts.stuck_at(*pids) if not c.closed_by_client]
        if not behind and not any(c.stuck for c in found):
            # Of an answer that has begun nobody is owed the next byte: all that are open to the router may wait.
            behind = [c for c in facts.to_server(*pids) if not c.closed_by_client]
        if not behind:
            break
        found = [*behind, *(c for c in found if c.client_pid not in forwarders)]
    return found


def forwards(facts: Facts, pid: int | None) -> bool:
    """Whether this is a router or a proxy, whose requests are those of its own clients."""
    known = facts.processes.get(pid or 0)
    return known is not None and known.role in FORWARDERS


def oldest(connections: Iterable[Connection]) -> float | None:
    """Age of the oldest debt."""
    return max((c.age_ms for c in connections if c.age_ms is not None), default=None)


def quietest(connections: Iterable[Connection]) -> float | None:
    """For how long no byte has moved on the quietest of them."""
    return max((c.quiet_ms for c in connections if c.quiet_ms is not None), default=None)


def evidence(text: str, *refs: str) -> Evidence:
    """One fact; only the first few references are kept."""
    return Evidence(text=text, ref=" ".join(refs[:_REFS]))


def socket_refs(connections: Iterable[Connection]) -> tuple[str, ...]:
    """References of the first few connections, the server's end where there is one."""
    return tuple(islice((c.refs[-1] for c in connections if c.refs), _REFS))


def process_ref(facts: Facts, pid: int) -> tuple[str, ...]:
    """Reference of a process, when it is in the snapshot."""
    return (f"processes[{facts.process_index[pid]}]",) if pid in facts.process_index else ()
