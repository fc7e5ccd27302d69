"""ROUTER_QUEUE: the router keeps requests in the queue of its own limiter.

Proof: it holds requests as ROUTER_HOLDS proves it, and its limiter shows: its gauge of queued requests is above 0, or
as many requests are under way as its flags allow at most. HIGH by the gauge; else MEDIUM.

It says where the requests are, not why those in front of them take so long: an engine that holds these is a finding
of its own. Lookalikes: a limit that is not reached; a limit of another router.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.correlate.names import flag_values
from freezeframe.judge.model import Confidence, Evidence, Verdict
from freezeframe.judge.verdicts._held import Held, held, held_evidence
from freezeframe.judge.verdicts._steps import flags, step
from freezeframe.judge.verdicts._words import count, evidence, oldest, process_ref, seconds, who

Level = Confidence.Level

QUEUED = frozenset({"smg_admission_queue_depth", "smg_scheduler_queue_depth"})


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per router."""
    return tuple(v for router in facts.routers if (v := _router(facts, router)) is not None)


def _router(facts: Facts, router: int) -> Verdict | None:
    found = held(facts, router)
    shows = limiter(facts, found) if found is not None else ()
    if found is None or not shows:
        return None
    return Verdict(
        code=Verdict.Code.ROUTER_QUEUE,
        hop="router",
        holder_pids=(router,),
        summary=f"The router (pid {router}) queues {count(found.count, 'request')} of {who(facts, found.down)} behind "
        f"its own limit, oldest {seconds(oldest(found.down))}; {found.passed} are under way.",
        confidence=Level.HIGH if any(e.ref.startswith("metrics") for e in shows) else Level.MEDIUM,
        evidence=(*held_evidence(facts, found), *shows),
        next_steps=(
            step("freezeframe show FILE findings", "what the requests under way wait for"),
            flags(router, "the limit that it has; raise it, or the rate, once they move"),
        ),
        explains=found.count,
    )


def limiter(facts: Facts, found: Held) -> tuple[Evidence, ...]:
    """What shows that the router's limiter is what keeps them."""
    told = [
        evidence(f"{metric.name} is {metric.value:.0f}", f"metrics[{index}]")
        for index, metric in facts.metrics_of(found.router)
        if metric.name in QUEUED and metric.value > 0
    ]
    for value in flag_values(facts.processes[found.router].argv, "--max-concurrent-requests"):
        if value.isdecimal() and 0 < int(value) <= found.passed:
            text = f"{found.passed} are under way, and --max-concurrent-requests is {value}"
            told.append(evidence(text, *process_ref(facts, found.router)))
    return tuple(told)
