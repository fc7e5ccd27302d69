"""ROUTER_LOST_REPLY: engines have answered or closed, and the router still owes its clients.

Proof: the router has read requests that are owed for STUCK_MS or longer; nothing is owed by any engine to it, and
nothing moves there; on at least as many upstream connections the whole answer waits unread in the router's socket, or
the engine has closed its side and the router has not; the router can run, and its sockets were all seen.
HIGH when unread answers are there; MEDIUM when they were read or only the close shows.

A disaggregated pair whose one leg still owes is ROUTER_DUAL_LEG. Lookalikes: a router that has no upstream connection
left (ROUTER_HOLDS); an answer on its way; one that the router passes on slowly to a client that does not read.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Debt, Facts
from freezeframe.judge.correlate.thresholds import slack
from freezeframe.judge.model import Confidence, Verdict
from freezeframe.judge.verdicts._proof import runs, sockets_seen, stuck
from freezeframe.judge.verdicts._steps import known, restart, step
from freezeframe.judge.verdicts._words import count, evidence, oldest, seconds, socket_refs, who

Level = Confidence.Level


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per router."""
    return tuple(v for router in facts.routers if (v := _router(facts, router)) is not None)


def _router(facts: Facts, router: int) -> Verdict | None:
    down = stuck(facts.to_server(router), Debt.ANSWER)
    upstream = facts.from_client(router)
    # Nobody upstream has anything to do any more.
    if not down or any(c.owed or c.moving or c.debt is Debt.UNKNOWN for c in upstream):
        return None
    unread = [c for c in upstream if c.debt is Debt.UNDELIVERED]
    over = [c for c in upstream if c.closed_by_server and c not in unread]
    lost = min(len(down), len(unread) + len(over))
    if lost < len(down) - slack(len(down)) or lost < 1:
        return None
    if not runs(facts, router) or not sockets_seen(facts, router):
        return None
    proved = [
        evidence(
            f"the router has read {count(len(down), 'request')} and owes each its answer, the oldest for "
            f"{seconds(oldest(down))}",
            *socket_refs(down),
        )
    ]
    if unread:
        text = f"{count(len(unread), 'answer')} of engines wait in its sockets, unread"
        proved.append(evidence(text, *socket_refs(unread)))
    if over:
        text = f"engines have closed {count(len(over), 'connection')} that it keeps open"
        proved.append(evidence(text, *socket_refs(over)))
    return Verdict(
        code=Verdict.Code.ROUTER_LOST_REPLY,
        hop="router",
        holder_pids=(router,),
        summary=f"The router (pid {router}) owes {count(len(down), 'answer')} to {who(facts, down)}, oldest "
        f"{seconds(oldest(down))}, though the engines have answered or closed.",
        confidence=Level.HIGH if len(unread) >= lost else Level.MEDIUM,
        evidence=tuple(proved),
        next_steps=(
            step("freezeframe show FILE native", "its threads: one that waits for another task forgets its answer"),
            restart(facts, router, "once its evidence is saved; what the engines said is lost already"),
            known("a router that loses the reply: a wake-up, or an error of the upstream that it swallowed"),
        ),
        explains=lost,
    )
