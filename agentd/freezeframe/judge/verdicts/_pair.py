"""Requests that both engines of a disaggregated pair say that they have, and that neither works on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from freezeframe.judge.correlate.facts import Connection, Engine, Facts
from freezeframe.judge.correlate.thresholds import LOAD_STALE_MS, LONG_MS, slack
from freezeframe.judge.model import Confidence, Evidence, Verdict
from freezeframe.judge.verdicts._legs import Leg, router_legs
from freezeframe.judge.verdicts._proof import for_clients, gets_bytes, runs, sockets_seen
from freezeframe.judge.verdicts._steps import known, log, step
from freezeframe.judge.verdicts._words import count, evidence, oldest, seconds, socket_refs, who

Level = Confidence.Level


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What stands between one router's engines."""

    prefill: Leg
    decode: Leg
    # Requests owed by both sides for LONG_MS or longer.
    waiting: tuple[Connection, ...]

    @property
    def engines(self) -> tuple[Engine, ...]:
        """All engines of the pair."""
        return (*self.prefill.engines, *self.decode.engines)

    @property
    def enough(self) -> int:
        """How many a queue has to hold at least to be the place of these requests."""
        return max(1, len(self.waiting) - slack(len(self.waiting)))


def standing_pairs(facts: Facts) -> tuple[Pair, ...]:
    """The pairs whose engines are all on this host, have the requests, can run, and do not work on anything.

    Each scheduler says so itself, of late: after the requests came, with nothing running or waiting to run.
    """
    if not facts.two_looks:
        return ()
    found = []
    for router in facts.routers:
        legs = router_legs(facts, router)
        if legs is None or not sockets_seen(facts, router):
            continue
        prefill, decode = legs
        old = [[c for c in leg.stuck if (c.age_ms or 0.0) >= LONG_MS] for leg in legs]
        waiting = min(old, key=len)
        if not waiting or not for_clients(facts, waiting) or prefill.unclear or decode.unclear:
            continue
        pair = Pair(prefill=prefill, decode=decode, waiting=tuple(waiting))
        sides = all(leg.engines for leg in legs) and sockets_seen(facts, *prefill.pids, *decode.pids)
        if sides and all(_stands(facts, engine, oldest(waiting) or 0.0) for engine in pair.engines):
            found.append(pair)
    return tuple(found)


def _stands(facts: Facts, engine: Engine, age_ms: float) -> bool:
    gauges = engine.gauges
    of_late = gauges.known and gauges.age_ms is not None and gauges.age_ms < age_ms
    works = gauges.running or gauges.waiting or gauges.tokens_delta or engine.batch or engine.asleep
    return of_late and not works and not gets_bytes(facts.to_server(*engine.http_pids)) and runs(facts, *engine.pids)


def between(facts: Facts, pair: Pair, code: Verdict.Code, *, what: str, queues: Iterable[Evidence]) -> Verdict:
    """The verdict that requests stand between the two; `what` as in "the handshake"."""
    holders = tuple(pid for engine in pair.engines for pid in engine.scheduler_pids or (engine.pid,))
    age = seconds(oldest(pair.waiting))
    fresh = all((e.gauges.age_ms or 0.0) <= LOAD_STALE_MS and e.gauges.tokens_delta == 0 for e in pair.engines)
    return Verdict(
        code=code,
        hop="scheduler of prefill",
        holder_pids=holders,
        summary=f"{count(len(pair.waiting), 'request')} of {who(facts, pair.waiting)} stand in {what} between prefill "
        f"and decode (pid {', '.join(map(str, holders))}), oldest {age}: both have them, neither goes on.",
        confidence=Level.HIGH if fresh else Level.MEDIUM,
        evidence=(
            *queues,
            evidence(
                f"{count(len(pair.waiting), 'request')} owed by both sides, the oldest for {age}",
                *socket_refs((*pair.prefill.stuck[:3], *pair.decode.stuck[:3])),
            ),
            *(
                evidence(
                    f"the log of pid {finding.pid}: {finding.meaning or finding.pattern}", f"log_findings[{index}]"
                )
                for index, finding in enumerate(facts.snapshot.log_findings)
                if finding.pattern in {"bootstrap_reconnect", "bootstrap_timeout"}
            ),
        ),
        next_steps=(
            *(
                log(facts, engine.pid, f"what {engine.kind} says of these rooms", pattern="bootstrap|transfer|room|KV")
                for engine in pair.engines
            ),
            *(
                step(f"ss -tanp | grep -w pid={engine.pid}", "whether decode reaches its bootstrap and transfer ports")
                for engine in pair.prefill.engines
            ),
            step("freezeframe show FILE python", "both sides' transfer_worker and bootstrap_thread"),
            known("rooms in which prefill and decode wait for each other: a port out of reach, a missed completion"),
        ),
        explains=for_clients(facts, pair.waiting),
    )


def told(engine: Engine, number: float | None, queue: str) -> Evidence:
    """What one scheduler says of a queue."""
    age = seconds(engine.gauges.age_ms)
    return evidence(
        f"{engine.kind} (pid {engine.pid}) says, {age} ago: {number or 0:.0f} in {queue}, nothing running or waiting",
        *(f"metrics[{index}]" for index in engine.gauges.indexes),
    )
