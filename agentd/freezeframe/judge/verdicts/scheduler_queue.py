"""SCHEDULER_QUEUE: requests wait in a scheduler's queue, none runs, and nothing progresses.

Proof, with two looks: the engine's waiting gauges are above 0, its running gauge is 0 and it counted no token in the
window; requests are owed by its HTTP process for STUCK_MS or longer and no byte went to any of its clients; all its
processes can run; and its scheduler rested at both looks, or the requests are older than LONG_MS.
HIGH when the scheduler is seen to rest; else MEDIUM. The queues of disaggregation are not counted.

Lookalikes: a queue behind running requests; a queue before a long prefill, whose scheduler does not rest; a gauge that
was written long ago, or before the requests came: one of a known age has to be younger than they are.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Engine, Facts
from freezeframe.judge.correlate.hops import scheduler_hop
from freezeframe.judge.model import Confidence, Verdict
from freezeframe.judge.verdicts._proof import for_clients, gets_bytes, resting, runs, stuck
from freezeframe.judge.verdicts._queue import ask_for_room, keeps_waiting, queue_evidence
from freezeframe.judge.verdicts._steps import known, stacks
from freezeframe.judge.verdicts._words import count, evidence, oldest, seconds, socket_refs, who

Level = Confidence.Level


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per engine."""
    if not facts.two_looks:
        return ()
    return tuple(v for engine in facts.engines if (v := _engine(facts, engine)) is not None)


def _engine(facts: Facts, engine: Engine) -> Verdict | None:
    gauges = engine.gauges
    served = facts.to_server(*engine.http_pids)
    waiting = stuck(served)
    if (
        gauges.waiting is None
        or not keeps_waiting(engine, waiting)
        or not for_clients(facts, waiting)
        or gets_bytes(served)
        or not runs(facts, *engine.pids)
        or not resting(facts, engine, oldest(waiting))
    ):
        return None
    holders = engine.scheduler_pids or (engine.pid,)
    rests = engine.busy is False
    age = seconds(oldest(waiting))
    proved = [
        queue_evidence(engine),
        evidence(
            f"{count(len(waiting), 'request')} owed by its HTTP process, the oldest for {age}",
            *socket_refs(waiting),
        ),
    ]
    if rests:
        proved.append(evidence(engine.busy_reason, *engine.busy_refs))
    return Verdict(
        code=Verdict.Code.SCHEDULER_QUEUE,
        hop=scheduler_hop(engine.kind),
        holder_pids=holders,
        summary=f"The {scheduler_hop(engine.kind)} (pid {', '.join(map(str, holders))}) keeps "
        f"{count(gauges.waiting, 'request')} of {who(facts, waiting)} in its queue and runs none, oldest {age}.",
        confidence=Level.HIGH if rests and gauges.tokens_delta == 0 else Level.MEDIUM,
        evidence=tuple(proved),
        next_steps=(
            ask_for_room(facts, engine),
            stacks(facts, holders[0], "where it is; twice, some seconds apart"),
            known("admission that is never true again: waiting above 0, running 0, KV cache free"),
        ),
        explains=min(round(gauges.waiting), len(waiting)),
    )
