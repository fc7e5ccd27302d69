"""ROUTER_NOT_ACCEPTING: the router does not accept connections, or does not read requests.

Proof: connections with a request have waited in its accept queue for STUCK_MS or longer and the queue did not shrink,
or requests have stood unread in its sockets as long while it sent no byte to anybody. The router can run: it is not
stopped, starved, dead or in D.
HIGH with two looks or both kinds; else MEDIUM.

Lookalikes: a burst (the queue is young); a router that has just started; threads in futex and epoll, which an idle
router and a wedged one share.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.model import Confidence, Verdict
from freezeframe.judge.verdicts._intake import has_served, intake, intake_evidence
from freezeframe.judge.verdicts._proof import runs
from freezeframe.judge.verdicts._steps import known, step
from freezeframe.judge.verdicts._words import count, evidence, process_ref, who

Level = Confidence.Level


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per router."""
    return tuple(v for router in facts.routers if (v := _router(facts, router)) is not None)


def _router(facts: Facts, router: int) -> Verdict | None:
    found = intake(facts, router)
    process = facts.processes[router]
    if not (found.unaccepted or found.unread) or not runs(facts, router) or not has_served(facts, router):
        return None
    silent = [e for e in facts.snapshot.endpoints if e.pid == router and e.purpose == "liveness" and not e.status]
    proved = intake_evidence(found)
    proved += [
        evidence(f"{e.path}: {e.error or 'no answer'}", f"endpoints[{facts.snapshot.endpoints.index(e)}]")
        for e in silent
    ]
    proved.append(evidence(f"it is in state {process.state}, not stopped", *process_ref(facts, router)))
    sure = facts.two_looks or (found.unread and found.listeners)
    return Verdict(
        code=Verdict.Code.ROUTER_NOT_ACCEPTING,
        hop="router",
        holder_pids=(router,),
        summary=f"The router (pid {router}) does not take in {count(found.waiting, 'request')} of "
        f"{who(facts, (*found.unaccepted, *found.unread))}: {len(found.unaccepted)} not accepted, "
        f"{len(found.unread)} not read.",
        confidence=Level.HIGH if sure else Level.MEDIUM,
        evidence=tuple(proved),
        next_steps=(
            step("freezeframe show FILE native", "what its threads do"),
            step(f"top -b -H -n 1 -p {router}", "whether one of them burns a core"),
            step(
                f"ls /proc/{router}/fd | wc -l; grep 'open files' /proc/{router}/limits",
                "whether it is out of descriptors",
            ),
            known("a router whose threads tokenize, so that it accepts nothing and misses its own health check"),
        ),
        explains=found.waiting,
    )
