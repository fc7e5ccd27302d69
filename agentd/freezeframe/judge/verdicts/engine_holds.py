"""ENGINE_HOLDS: an engine of unknown inner structure has read requests and neither answers them nor works on them.

Proof: requests were read by its HTTP process and are owed for STUCK_MS or longer; all its processes can run; nothing
waits to be read or accepted there; its loop lives (its stack rests or changed, or its liveness endpoint answered); its
scheduler's queues are not the place (it sleeps its idle sleep, or they say 0, or the engine exports none); and it does
not work on them: its scheduler rested at both looks and its numbers are known, or told its numbers since they came and
they are older than any prefill (LONG_MS); of an engine without a scheduler process the latter alone. A scheduler that
is not seen to rest, and last told its numbers, with their time, before the requests came or nobody knows when, takes
the proof away: it may be in a batch that does not end. So does one of vLLM that rests, whose numbers have no time.

Of a disaggregated pair the other leg decides:
- prefill answered, decode owes: decode holds;
- both owe: the one whose scheduler has nothing holds, if the other's keeps requests in its disaggregation queues,
  which means that it waits for its partner. When both, or neither, say so, or numbers are missing: nothing is claimed;
- prefill owes, decode does not: ROUTER_DUAL_LEG or nothing, where the router sends both legs at once, and nothing
  where the router is not seen.

HIGH when two looks, a resting scheduler, numbers and both ends agree; LOW when the engine exports no numbers.
Where its scheduler is a process of its own that is known to have nothing, it is ENGINE_HANDOFF.

Lookalikes: a long prefill (no token is counted until it is over, and its scheduler does not rest); a queue that moves;
health checks of the router, for which no client waits; websockets on which the client spoke last, which SGLang's HTTP
layer does not count as requests; an idle scheduler at 100 % CPU, which proves nothing.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Connection, Debt, Engine, Facts
from freezeframe.judge.correlate.gauges import QUEUES
from freezeframe.judge.correlate.thresholds import GAUGE_STALE_MS, TURNING_WAKES, slack
from freezeframe.judge.model import Confidence, Evidence, Verdict
from freezeframe.judge.verdicts._intake import intake
from freezeframe.judge.verdicts._legs import router_legs
from freezeframe.judge.verdicts._proof import (
    for_clients,
    loop_lives,
    resting,
    runs,
    sends_both_legs,
    sockets_seen,
    stuck,
)
from freezeframe.judge.verdicts._steps import ask, known, log, step
from freezeframe.judge.verdicts._tasks import tasks_of
from freezeframe.judge.verdicts._words import count, engine_name, evidence, oldest, seconds, socket_refs, who

Level = Confidence.Level


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per engine."""
    engines = (engine for engine in facts.engines if not known_inside(engine))
    return tuple(v for engine in engines if (v := keeps(facts, engine, Verdict.Code.ENGINE_HOLDS)) is not None)


def known_inside(engine: Engine) -> bool:
    """Whether its scheduler is a process of its own that is known to have nothing: then ENGINE_HANDOFF says more."""
    return bool(engine.scheduler_pids) and engine.accounted


def keeps(facts: Facts, engine: Engine, code: Verdict.Code) -> Verdict | None:
    """The verdict, under this code, that an engine's HTTP layer keeps requests; None where it is not proved."""
    served = facts.to_server(*engine.http_pids)
    waiting = stuck(served, Debt.ANSWER)
    age = oldest(waiting)
    explains = min(for_clients(facts, waiting), _counted(engine, len(waiting)))
    if not explains or engine.batch or not runs(facts, *engine.pids) or not resting(facts, engine, age):
        return None
    for pid in engine.http_pids:
        found = intake(facts, pid)
        if found.unread or found.unaccepted:
            return None
    # Of several tokenizer workers those that have them.
    holders = tuple(dict.fromkeys(c.server_pid for c in waiting if c.server_pid is not None))
    if not all(loop_lives(facts, pid) for pid in holders):
        return None
    gauges = engine.gauges
    if _silent_since(facts, engine, age) or not _queues_clear(engine) or not _numbers_asked(facts, engine):
        return None
    partner = _partner(facts, engine, waiting)
    if partner is None:
        return None
    rests = engine.busy is False and facts.two_looks
    sure = rests and engine.accounted and all(c.agreed for c in waiting)
    level = Level.HIGH if sure else Level.MEDIUM if gauges.known else Level.LOW
    pids = ", ".join(map(str, holders))
    proved = [
        evidence(
            f"its HTTP process (pid {pids}) has read {count(len(waiting), 'request')} and owes each its answer, "
            f"the oldest for {seconds(age)}",
            *socket_refs(waiting),
        )
    ]
    if gauges.empty:
        text = "its scheduler says: nothing running, waiting or in a disaggregation queue"
        proved.append(evidence(text, *(f"metrics[{index}]" for index in gauges.indexes)))
    elif engine.asleep:
        text = "its scheduler sleeps its idle sleep, so its queues are empty; its gauges were written before"
        proved.append(evidence(text, *engine.busy_refs))
    if engine.busy_reason:
        proved.append(evidence(engine.busy_reason, *engine.busy_refs))
    proved += partner
    tasks = tasks_of(facts, waiting)
    proved += tasks
    return Verdict(
        code=code,
        hop=engine.kind,
        holder_pids=holders,
        summary=f"The {engine_name(engine.kind)} (pid {pids}) holds {count(len(waiting), 'request')} of "
        f"{who(facts, waiting)}, oldest {seconds(age)}: read, not answered, and not worked on.",
        confidence=level,
        evidence=tuple(proved),
        next_steps=(
            step(f"freezeframe show FILE {'asyncio' if tasks else 'python'}", "where these requests wait in it"),
            log(facts, holders[0], "whether these requests reached the scheduler: look for their ids")
            if gauges.known
            else ask(
                facts, holders[0], "/model_info", "whether its loop answers; /health would wait for the scheduler"
            ),
            known("requests or replies lost between HTTP process and scheduler: several tokenizer workers, overload"),
        ),
        explains=explains,
    )


def _counted(engine: Engine, seen: int) -> int:
    """How many of the requests that were seen its HTTP layer counts too, where it counts any: a websocket is none."""
    return seen if engine.gauges.http_active is None else min(seen, round(engine.gauges.http_active))


def _silent_since(facts: Facts, engine: Engine, age_ms: float | None) -> bool:
    """Whether its scheduler may have told nothing since these requests came: it may have stopped reading since.

    One of vLLM tells its numbers with what it computed, and rests too while it is paused and keeps what came.
    """
    if engine.asleep or not engine.scheduler_pids or engine.gauges.tokens_delta:
        return False
    # A scheduler that is seen to rest may have nothing new to tell: only its load snapshot is written all the same.
    rests = engine.busy is False
    told = engine.gauges.told_age_ms if rests else engine.gauges.age_ms
    if told is None:
        return not rests or any(facts.processes[pid].product == "vllm" for pid in engine.scheduler_pids)
    return age_ms is not None and told > age_ms


def _queues_clear(engine: Engine) -> bool:
    """Whether the requests are not said to be in the scheduler's queues; one in its idle sleep has none."""
    return engine.asleep or not (engine.gauges.waiting or engine.gauges.handover)


def _turns_for(partner: Engine, engine: Engine) -> bool:
    """Whether the partner's scheduler has something in hand and this one's has nothing.

    A scheduler of SGLang sleeps its idle sleep of a second only when all its queues are empty; with a request in a
    queue of disaggregation its loop turns. Its gauges are not written in that state.
    """
    return engine.asleep and _turns(partner)


def _turns(engine: Engine) -> bool:
    return engine.wakes_per_s is not None and engine.wakes_per_s >= TURNING_WAKES


def _has_in_hand(partner: Engine, engine: Engine, age_ms: float | None) -> bool:
    """Whether the partner's scheduler waits for this engine: seen by its loop, or said by its queues.

    A scheduler that has become idle writes its gauges again within 30 s, one with a request in a queue of
    disaggregation never: until the requests are older than that both sides' numbers may be those of another time.
    """
    if _turns_for(partner, engine):
        return True
    if not partner.gauges.handover or partner.asleep:
        return False
    return _turns(partner) or (age_ms is not None and age_ms >= GAUGE_STALE_MS)


def _waits_for(partner: Engine, engine: Engine) -> Evidence:
    if partner.gauges.handover:
        text = f"keeps {partner.gauges.handover:.0f} in its disaggregation queues: it waits for {engine.kind}"
        refs = tuple(f"metrics[{index}]" for index in partner.gauges.indexes)
    else:
        text = (
            f"has requests in hand (its scheduler woke {partner.wakes_per_s:.0f} times a second) while that of "
            f"{engine.kind} sleeps its idle sleep ({engine.wakes_per_s:.0f})"
        )
        refs = (*partner.busy_refs, *engine.busy_refs)
    return evidence(f"{partner.kind} (pid {partner.pid}) {text}", *refs)


def _numbers_asked(facts: Facts, engine: Engine) -> bool:
    """Whether the scheduler's numbers are known, or known not to be exported: ones that are too old are neither."""
    if engine.gauges.known:
        return True
    too_old = any(metric.name in QUEUES for _, metric in facts.metrics_of(*engine.pids))
    return (engine.asleep or not too_old) and facts.collected("sample_metrics", engine.http_pids)


def _partner(  # noqa: PLR0911
    facts: Facts, engine: Engine, waiting: list[Connection]
) -> list[Evidence] | None:
    """What the other engine of a pair adds; None when it takes the proof away."""
    if engine.kind == "engine":
        return []
    if engine.kind == "prefill" and any(c.client_pid is None for c in waiting):
        return None  # who sent them, and whether their other leg is there, is not known
    routers = {c.client_pid for c in waiting if c.client_pid in facts.routers}
    other = "decode" if engine.kind == "prefill" else "prefill"
    partners = [e for e in facts.engines if e.kind == other]
    owed = 0
    for router in routers:
        legs = router_legs(facts, router or 0)
        if legs is None or not sockets_seen(facts, router or 0):
            return None
        leg = next(leg for leg in legs if leg.kind == other)
        owed += len(leg.owed) + len(leg.unclear)
    both = owed >= len(waiting) - slack(len(waiting))
    if not both and owed:
        return None
    if both:
        waits = [e for e in partners if _has_in_hand(e, engine, oldest(waiting))]
        if not waits or not engine.accounted or _turns(engine):
            return None
        return [_waits_for(partner, engine) for partner in waits]
    if engine.kind == "prefill" and any(sends_both_legs(facts, router or 0) for router in routers):
        return None
    return [evidence(f"nothing is owed by {other}")]
