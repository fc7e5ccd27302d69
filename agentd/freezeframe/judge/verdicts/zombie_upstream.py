"""ZOMBIE_UPSTREAM: the router keeps upstream requests whose clients are gone.

Proof: more upstream requests live than the router has open connections of clients, whatever state these are in. A
request lives when its answer is owed for longer than a health check takes (HEALTH_CHECK_MS), when bytes of it move
between the looks, or when it is quiet for longer than its engine keeps an idle connection and the engine has work: its
scheduler says so, or is seen in one batch at both looks. Two legs of a pair count once.
MEDIUM; HIGH when the router has no client's connection at all and several such requests.

Lookalikes: the router's own health checks, which are young; requests of clients that are still there.
Blocked by sockets of the router that were not seen, and where a connection may carry several requests (a router that
is not known to speak HTTP/1).
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Connection, Facts
from freezeframe.judge.correlate.thresholds import HEALTH_CHECK_MS, slack
from freezeframe.judge.model import Confidence, Verdict
from freezeframe.judge.verdicts._proof import has_work, leg_kind, sends_both_legs, sockets_seen, stalled
from freezeframe.judge.verdicts._steps import ask, known, restart
from freezeframe.judge.verdicts._words import count, evidence, process_ref, seconds, socket_refs

Level = Confidence.Level


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per router."""
    return tuple(v for router in facts.routers if (v := _router(facts, router)) is not None)


def _router(facts: Facts, router: int) -> Verdict | None:
    quiet = [c for engine in facts.engines if has_work(engine) for c in stalled(facts, engine)]
    upstream = [c for c in facts.from_client(router) if _lives(c) or c in quiet]
    clients = [c for c in facts.to_server(router) if not c.closed_by_client]
    kinds: dict[str, int] = {}
    for connection in upstream:
        kind = leg_kind(facts, connection)
        kinds[kind] = kinds.get(kind, 0) + 1
    living = _requests(kinds)
    zombies = living - len(clients)
    # Beside many that move, one may have come or gone between the reads of the two tables.
    few = zombies <= (slack(living) if clients else 0)
    if few or not sockets_seen(facts, router) or not sends_both_legs(facts, router):
        return None
    ages = max((c.age_ms for c in upstream if c.age_ms is not None), default=None)
    since = f", the oldest owed for {seconds(ages)}" if ages else ""
    return Verdict(
        code=Verdict.Code.ZOMBIE_UPSTREAM,
        hop="router",
        holder_pids=(router,),
        summary=f"The router (pid {router}) keeps {count(zombies, 'upstream request')} without a client{since}.",
        confidence=Level.HIGH if zombies > 1 and not clients else Level.MEDIUM,
        evidence=(
            evidence(f"{count(living, 'request')} live upstream", *socket_refs(upstream)),
            evidence(
                f"{count(len(clients), 'connection')} of clients are open",
                *(socket_refs(clients) or process_ref(facts, router)),
            ),
        ),
        next_steps=(
            *(
                ask(
                    facts,
                    engine.pid,
                    "/metrics",
                    "requests that run for nobody",
                    pattern="num_running|num_requests_running",
                )
                for engine in facts.engines[:2]
            ),
            restart(facts, router, "drops them with its connections"),
            known("a cancel that is not passed on: sglang-router 0.3.2 notices it only at the next chunk"),
        ),
    )


def _requests(kinds: dict[str, int]) -> int:
    """How many requests these legs are at least: one of unknown kind may be either leg of a pair."""
    prefill, decode, unknown = kinds.pop("prefill", 0), kinds.pop("decode", 0), kinds.pop("", 0)
    return max(prefill, decode, -(-(prefill + decode + unknown) // 2)) + sum(kinds.values())


def _lives(connection: Connection) -> bool:
    if connection.closed_by_server:
        return False
    owed = connection.owed and connection.age_ms is not None and connection.age_ms >= HEALTH_CHECK_MS
    return owed or connection.streaming
