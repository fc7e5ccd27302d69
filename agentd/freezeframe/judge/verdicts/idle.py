"""IDLE: no request in flight anywhere.

Proof: no connection of a client is owed, unread or streaming, no upstream connection is owed but for what may be a
young health check, and no scheduler says that it has requests, or is seen to run a batch, while a connection to it is
open; and each engine that has connections answered the agent, where it was asked, and is not
short of CPU time.
An answer that stalled is quiet like an idle connection. So a connection to an engine that is open and quiet for longer
than the engine's HTTP server keeps idle ones open takes the proof away.
HIGH with two looks and gauges that agree; LOW with one look. Blocked by sockets that were not seen.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Debt, Engine, Facts
from freezeframe.judge.correlate.thresholds import HEALTH_CHECK_MS
from freezeframe.judge.model import Confidence, Verdict
from freezeframe.judge.verdicts._proof import silent_endpoint, stalled, starved
from freezeframe.judge.verdicts._steps import step
from freezeframe.judge.verdicts._words import count, evidence, process_ref

Level = Confidence.Level


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """At most one verdict."""
    if not (facts.routers or facts.engines) or not facts.collected("snapshot_sockets"):
        return ()
    if any(client.in_flight for client in facts.clients):
        return ()
    for connection in facts.connections:
        young = connection.age_ms is not None and connection.age_ms < HEALTH_CHECK_MS
        if (connection.owed and not young) or connection.debt is Debt.UNDELIVERED or connection.streaming:
            return ()
    if any(_has_work(facts, engine) or stalled(facts, engine) or _mute(facts, engine) for engine in facts.engines):
        return ()
    told = [engine for engine in facts.engines if engine.accounted]
    level = Level.LOW if not facts.two_looks else Level.HIGH if told == list(facts.engines) else Level.MEDIUM
    proved = [
        evidence(
            f"{count(len(facts.connections), 'connection')} of the path, none owed, unread or streaming",
            *(ref for pid in facts.routers for ref in process_ref(facts, pid)),
        )
    ]
    proved += [
        evidence(f"{e.kind} (pid {e.pid}) has nothing running or waiting", *(f"metrics[{i}]" for i in e.gauges.indexes))
        for e in told
    ]
    clients = count(len(facts.clients), "client")
    pids = [client.pid for client in facts.clients if client.pid is not None][:1]
    return (
        Verdict(
            code=Verdict.Code.IDLE,
            summary=f"No request is in flight: {clients} connected, none waits.",
            confidence=level,
            evidence=tuple(proved),
            next_steps=(
                *(
                    step(f"freezeframe snap --client {pid}", "if this client does wait, what has not left it")
                    for pid in pids
                ),
                *(() if pids else (step("ss -tanp", "whether who waits has a connection to this host at all"),)),
            ),
        ),
    )


def _mute(facts: Facts, engine: Engine) -> bool:
    """Whether an HTTP process of it did not answer the agent or wants CPU time and gets none.

    Then what its open connections carry is not known.
    """
    served = (c for c in facts.to_server(*engine.http_pids) if not c.closed_by_client and not c.closed_by_server)
    return any(served) and any(
        silent_endpoint(facts, pid) is not None or starved(facts, facts.processes[pid]) for pid in engine.http_pids
    )


def _has_work(facts: Facts, engine: Engine) -> bool:
    """Whether its scheduler says so, or its stack, and a connection is open on which the answer could go out.

    SGLang writes its gauges at batches and every 30 s when idle: what they say may be over.
    """
    gauges = engine.gauges
    if engine.asleep or not (gauges.running or gauges.waiting or gauges.handover or engine.batch):
        return False
    served = facts.to_server(*engine.http_pids)
    return any(not c.closed_by_server and not c.closed_by_client and not c.rests for c in served)
