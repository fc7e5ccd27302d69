"""Processes of the path, and the requests that each one's fault would explain."""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Connection, Debt, Engine, Facts
from freezeframe.judge.correlate.hops import scheduler_hop
from freezeframe.judge.model import Process
from freezeframe.judge.verdicts._proof import stuck

Role = Process.Role

_SCHEDULERS = frozenset({Role.SCHEDULER, Role.WORKER, Role.DP_CONTROLLER})
_PATH = frozenset({Role.PROXY, Role.ROUTER, Role.ENGINE_HTTP, Role.TOKENIZER_WORKER, Role.DETOKENIZER, *_SCHEDULERS})


def path_processes(facts: Facts) -> tuple[Process, ...]:
    """Processes that every or some request passes, and clients that have a connection to the path."""
    clients = {client.pid for client in facts.clients}
    return tuple(p for p in facts.snapshot.processes if p.role in _PATH or (p.role is Role.CLIENT and p.pid in clients))


def engine_with(facts: Facts, process: Process) -> Engine | None:
    """The engine that a process is a part of."""
    return next((e for e in facts.engines if process.pid in e.pids or e.pid == process.engine_pid), None)


def hop_of(facts: Facts, process: Process) -> str:
    """Name of the hop that a process belongs to."""
    if process.role in {Role.CLIENT, Role.PROXY, Role.ROUTER}:
        return process.role.name.lower()
    engine = engine_with(facts, process)
    kind = engine.kind if engine else process.disaggregation or "engine"
    if process.role in _SCHEDULERS:
        return scheduler_hop(kind)
    return "detokenizer" if process.role is Role.DETOKENIZER else kind


def waiting_for(facts: Facts, process: Process) -> list[Connection]:
    """Stuck requests that pass this process: owed by it, by its engine, or not taken by it."""
    if process.role is Role.CLIENT:
        return [c for c in facts.from_client(process.pid) if c.debt is Debt.UNDELIVERED]
    return stuck(served_with(facts, process))


def served_with(facts: Facts, process: Process) -> tuple[Connection, ...]:
    """Connections that this process serves, or its engine."""
    engine = engine_with(facts, process)
    return facts.to_server(*(engine.http_pids if engine else (process.pid,)))
