"""NOT_STUCK: requests move.

Proof: requests are in flight, and each client that has waited for STUCK_MS or longer got bytes on other connections in
the window (its requests queue, and the queue moves), or an engine that owes counts tokens that no answer in progress
explains (a long prefill), and its detokenizer is seen not to be what keeps their answers. Or none is in flight at the
last look, and bytes went to clients while tokens were counted.
With one look movement cannot be seen: LOW, and only when no request is older than STUCK_MS.

It says nothing of an answer that stalled among many that move. Blocked by sockets that were not seen, by answers that a
client does not take, and where all that moves is what a router says by itself: that may be one refusal after the other.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Client, Engine, Facts
from freezeframe.judge.correlate.thresholds import BUSY, HEALTH_TOKENS, LONG_MS
from freezeframe.judge.model import Confidence, Verdict
from freezeframe.judge.verdicts._proof import answered_by_routers, gets_bytes, stuck
from freezeframe.judge.verdicts._steps import step
from freezeframe.judge.verdicts._words import count, engine_name, evidence, seconds, socket_refs

Level = Confidence.Level


def rule(facts: Facts) -> tuple[Verdict, ...]:  # noqa: PLR0911
    """At most one verdict."""
    if not facts.collected("snapshot_sockets"):
        return ()
    flying = sum(client.in_flight for client in facts.clients)
    moving = sum(client.moving for client in facts.clients)
    if not (flying or _served(facts, moving)) or any(
        c.untaken for c in facts.connections if c.client_pid not in facts.routers
    ):
        return ()
    if answered_by_routers(facts):
        return ()
    age = max((c.oldest_age_ms for c in facts.clients if c.oldest_age_ms is not None), default=None)
    waits = [client for client in facts.clients if client.stuck]
    if not waits and not flying:
        text = f"Requests come and go: bytes went to {count(moving, 'connection')} of clients in the window."
        return (_verdict(facts, Level.MEDIUM, text),)
    if not waits:
        level = Level.HIGH if moving else Level.LOW
        text = "none is older than 1 s" if not moving else f"bytes flow to {count(moving, 'connection')}"
        return (_verdict(facts, level, f"{count(flying, 'request')} in flight, {text}."),)
    if not facts.two_looks:
        return ()
    worker = _working_engine(facts)
    if all(client.moving for client in waits):
        level = Level.MEDIUM if (age or 0) < LONG_MS else Level.LOW
        text = f"bytes flow to {count(moving, 'connection')} of the same clients; the oldest has waited {seconds(age)}"
        return (_verdict(facts, level, f"{count(flying, 'request')} in flight, {text}.", *waits),)
    if worker is not None:
        text = f"{count(flying, 'request')} in flight, the oldest has waited {seconds(age)}: the "
        text += f"{engine_name(worker.kind)} (pid {worker.pid}) {worker.busy_reason}."
        return (_verdict(facts, Level.MEDIUM, text, engine=worker),)
    return ()


def _served(facts: Facts, moving: int) -> bool:
    """Whether bytes that moved were requests, not scrapes alone: engines that count tokens tell."""
    told = [e.gauges.tokens_delta for e in facts.engines if e.gauges.tokens_delta is not None]
    return bool(moving) and (not told or sum(told) > HEALTH_TOKENS)


def _working_engine(facts: Facts) -> Engine | None:
    """An engine that owes and counts tokens which no byte that moved explains: they are of those that wait.

    The tokens of a health check come with its answer, those of a stray with its stream.
    """
    streaming = any(c.streaming for c in facts.connections)
    for engine in facts.engines:
        served = facts.to_server(*engine.http_pids)
        enough = HEALTH_TOKENS if gets_bytes(served) else 0.0
        counts = (engine.gauges.tokens_delta or 0) > enough and not streaming
        if stuck(served) and counts and not _kept_by_detokenizer(facts, engine):
            return engine
    return None


def _kept_by_detokenizer(facts: Facts, engine: Engine) -> bool:
    """Whether tokens are made and may all stand before a detokenizer: one that never rests, or was not seen."""
    if not engine.gauges.generated_delta:
        return False
    spent = [facts.processes[pid].cpu_ms_delta for pid in engine.detokenizer_pids]
    return any(each is None or each >= BUSY * facts.window_ms for each in spent)


def _verdict(facts: Facts, level: Confidence.Level, text: str, *waits: Client, engine: Engine | None = None) -> Verdict:
    moving = [c for c in facts.connections if c.moving]
    proved = []
    if moving:
        proved.append(evidence(f"bytes moved on {count(len(moving), 'connection')}", *socket_refs(moving)))
    proved += [
        evidence(f"{count(c.stuck, 'request')} of {c.name} waited longer than 1 s while {c.moving} moved", *c.refs)
        for c in waits
    ]
    if engine is not None:
        proved.append(evidence(f"{engine.kind} (pid {engine.pid}) {engine.busy_reason}", *engine.busy_refs))
    if not proved:
        young = [c for c in facts.connections if c.owed]
        proved.append(evidence(f"{count(len(young), 'debt')}, all young", *socket_refs(young)))
    return Verdict(
        code=Verdict.Code.NOT_STUCK,
        summary=text,
        confidence=level,
        evidence=tuple(proved),
        next_steps=()
        if level is Level.HIGH
        else (step("freezeframe snap --window 5", "looks for longer, to be sure"),),
    )
