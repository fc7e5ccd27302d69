"""ROUTER_HOLDS: the router has read requests and passed them on to nobody.

Proof: N downstream requests were read by the router and are owed for STUCK_MS or longer; all its upstream connections
together, to engines, other hosts or anything else, carry fewer requests (two legs of a pair count once); the router
can run and its sockets were all seen.
Upstream connections count whatever their debt: being connected, unread, unclear. An open and quiet one that is quiet
for longer than engines keep idle connections may carry several requests at once (HTTP/2, gRPC), and so may one that
moves, unless the router is known to speak HTTP/1: then nothing is claimed.
HIGH when nothing at all is open upstream and both ends of each agree; else MEDIUM.

What it cannot tell: a queue or limiter, a retry that backs off, a lost wake-up or a wait for something else.
Lookalikes: requests just read; a pair's two legs taken for two requests; keep-alive pools.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Connection, Debt, Facts
from freezeframe.judge.correlate.thresholds import ENGINE_KEEP_ALIVE_MS, slack
from freezeframe.judge.model import Confidence, Verdict
from freezeframe.judge.verdicts._proof import leg_kind, runs, sends_both_legs, sockets_seen, stuck
from freezeframe.judge.verdicts._words import count, evidence, oldest, process_ref, seconds, socket_refs, who

Level = Confidence.Level


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per router."""
    return tuple(v for router in facts.routers if (v := _router(facts, router)) is not None)


def _router(facts: Facts, router: int) -> Verdict | None:
    down = stuck(facts.to_server(router), Debt.ANSWER)
    upstream = facts.from_client(router)
    passed = _passed_on(facts, upstream)
    held = len(down) - passed
    if held < 1 or (passed and held <= slack(len(down))):
        return None
    if not runs(facts, router) or not sockets_seen(facts, router) or _multiplexed(facts, router, upstream):
        return None
    age = seconds(oldest(down))
    proved = [
        evidence(f"the router has read {count(len(down), 'request')}, the oldest owed for {age}", *socket_refs(down)),
        evidence(
            f"upstream it has {count(passed, 'request')} under way on {count(len(upstream), 'open connection')}",
            *(socket_refs(upstream) or process_ref(facts, router)),
        ),
    ]
    proved += [
        evidence(f"its log: {finding.meaning or finding.pattern}, {finding.count} times", f"log_findings[{index}]")
        for index, finding in enumerate(facts.snapshot.log_findings)
        if finding.pid == router
    ]
    sure = not upstream and all(c.agreed for c in down)
    return Verdict(
        code=Verdict.Code.ROUTER_HOLDS,
        hop="router",
        holder_pids=(router,),
        summary=f"The router (pid {router}) holds {count(held, 'request')} of {who(facts, down)}, oldest {age}: read, "
        "and not passed on to any engine.",
        confidence=Level.HIGH if sure else Level.MEDIUM,
        evidence=tuple(proved),
        next_steps=(
            "Look for its limits: --max-concurrent-requests, --queue-size, --rate-limit-tokens-per-second.",
            "Ask it for its workers: GET /workers; and read its log for retries, breakers and health checks.",
        ),
        explains=held,
    )


def _passed_on(facts: Facts, upstream: tuple[Connection, ...]) -> int:
    kinds: dict[str, int] = {}
    for connection in upstream:
        if connection.debt is not Debt.NONE or connection.moving:
            kind = leg_kind(facts, connection)
            kinds[kind] = kinds.get(kind, 0) + 1
    pair = max(kinds.pop("prefill", 0), kinds.pop("decode", 0))
    return pair + sum(kinds.values())


def _multiplexed(facts: Facts, router: int, upstream: tuple[Connection, ...]) -> bool:
    """Whether one upstream connection may carry several requests."""
    lives = [c for c in upstream if not c.closed_by_server and not c.closed_by_client]
    if any(c.debt is Debt.NONE and c.quiet_ms is not None and c.quiet_ms > ENGINE_KEEP_ALIVE_MS for c in lives):
        return True
    return any(c.moving for c in lives) and not sends_both_legs(facts, router)
