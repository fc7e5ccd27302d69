"""ROUTER_HOLDS: the router has read requests and passed them on to nobody.

Proof: N downstream requests were read by the router and are owed for STUCK_MS or longer; all its upstream connections
together, to engines, other hosts or anything else, carry fewer requests (two legs of a pair count once); the router
can run and its sockets were all seen.
Upstream connections count whatever their debt: being connected, unread, unclear. An open and quiet one that is quiet
for longer than engines keep idle connections may carry several requests at once (HTTP/2, gRPC), and so may one that
moves, unless the router is known to speak HTTP/1: then nothing is claimed.
HIGH when nothing at all is open upstream and both ends of each agree; else MEDIUM.

What it cannot tell: a retry that backs off, a lost wake-up or a wait for something else. A limiter that shows is
ROUTER_QUEUE.
Lookalikes: requests just read; a pair's two legs taken for two requests; keep-alive pools.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.model import Confidence, Verdict
from freezeframe.judge.verdicts._held import held, held_evidence
from freezeframe.judge.verdicts._steps import ask, flags, log
from freezeframe.judge.verdicts._words import count, evidence, oldest, seconds, who
from freezeframe.judge.verdicts.router_queue import limiter

Level = Confidence.Level


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per router."""
    return tuple(v for router in facts.routers if (v := _router(facts, router)) is not None)


def _router(facts: Facts, router: int) -> Verdict | None:
    found = held(facts, router)
    if found is None or limiter(facts, found):
        return None
    proved = held_evidence(facts, found)
    proved += [
        evidence(f"its log: {finding.meaning or finding.pattern}, {finding.count} times", f"log_findings[{index}]")
        for index, finding in enumerate(facts.snapshot.log_findings)
        if finding.pid == router
    ]
    return Verdict(
        code=Verdict.Code.ROUTER_HOLDS,
        hop="router",
        holder_pids=(router,),
        summary=f"The router (pid {router}) holds {count(found.count, 'request')} of {who(facts, found.down)}, oldest "
        f"{seconds(oldest(found.down))}: read, and not passed on to any engine.",
        confidence=Level.HIGH if found.sure else Level.MEDIUM,
        evidence=tuple(proved),
        next_steps=(
            flags(router, "its limits, retries and timeouts"),
            ask(facts, router, "/workers", "which workers it knows, and takes for healthy"),
            log(facts, router, "retries, breakers, health checks", pattern="retry|breaker|health|worker|panic"),
        ),
        explains=found.count,
    )
