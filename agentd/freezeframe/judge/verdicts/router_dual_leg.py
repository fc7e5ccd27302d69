"""ROUTER_DUAL_LEG: of a disaggregated pair one leg is over or never began, the other is silent, and the router waits.

Proof, first form (decode failed, prefill never ends). For a router that sends both legs at once:
- N downstream requests were read by the router and are owed for STUCK_MS or longer;
- P of prefill's connections are owed and silent as long;
- decode's connections owe fewer: min(N, P) minus those that decode owes are lost. Decode cannot have ended first in
  good order, since it needs prefill's result;
- a decode connection that is open and quiet might be a stream whose headers went out, so it counts as one that lives
  unless decode's own numbers are 0, or its HTTP layer's, or its scheduler sleeps its idle sleep, or the router's log
  says that decode failed.
The holder is the router: it alone could answer, and it waits for both. That prefill is silent follows: its partner in
the handshake is gone.

Proof, second form (prefill gone, decode waits), with two looks. Decode's connections are owed and silent, its scheduler
keeps requests in a queue of disaggregation, goes on looking at that queue, and counts no token (or they are older than
LONG_MS, where that is not known), while nothing is owed by prefill and its scheduler has nothing and counts none, or
there is no prefill engine. Prefill's answer alone is no sign: it ends early in good order.

Blocked by sockets of the router or of decode that were not seen, by debts that cannot be told, and by bytes of the
router to an engine that stay unacknowledged: then it is the network that keeps a leg from beginning.

Lookalikes that it must not take: prefill owed with decode owed as well (both work, or one engine holds them); decode
owed after prefill has answered (decode's turn), also by one whose scheduler hangs with all of them in its queues; a
router that sends one leg after the other; requests just arrived.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Debt, Engine, Facts
from freezeframe.judge.correlate.thresholds import LONG_MS, STUCK_MS, slack
from freezeframe.judge.model import Confidence, Evidence, Verdict
from freezeframe.judge.verdicts._legs import Leg, router_legs
from freezeframe.judge.verdicts._proof import runs, sends_both_legs, sockets_seen, stuck
from freezeframe.judge.verdicts._steps import known, log
from freezeframe.judge.verdicts._words import count, evidence, oldest, process_ref, seconds, socket_refs, who
from freezeframe.judge.verdicts.network_stalled import unanswered

Level = Confidence.Level

# Patterns of the router's log; only those as young as the requests count.
_LEG_FAILED = frozenset({"router_decode_failed", "router_prefill_failed", "router_stream_error"})


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per router in this state."""
    found = []
    for router in facts.routers:
        legs = router_legs(facts, router)
        if legs is None or not sends_both_legs(facts, router) or not runs(facts, router) or _cut_off(facts, router):
            continue
        verdict = _decode_gone(facts, router, *legs) or _prefill_gone(facts, router, *legs)
        if verdict is not None:
            found.append(verdict)
    return tuple(found)


def _cut_off(facts: Facts, router: int) -> bool:
    sockets = facts.snapshot.sockets
    return any(c.client_index is not None and unanswered(sockets[c.client_index]) for c in facts.from_client(router))


def _decode_gone(facts: Facts, router: int, prefill: Leg, decode: Leg) -> Verdict | None:
    down = stuck(facts.to_server(router), Debt.ANSWER)
    waiting = min(len(down), len(prefill.stuck))
    failures = _failures(facts, router)
    idle = decode.empty
    streams = 0 if idle or failures else sum(not c.rests for c in decode.quiet)
    alive = len(decode.owed) + len(decode.unclear) + streams
    lost = waiting - alive
    if lost < 1 or (alive and lost <= slack(waiting)) or not sockets_seen(facts, router, *decode.pids):
        return None
    age = oldest(down)
    proved = [
        _downstream(facts, router),
        evidence(
            f"prefill leg: {count(len(prefill.stuck), 'connection')} open, request read, nothing answered for "
            f"{seconds(oldest(prefill.stuck))}",
            *socket_refs(prefill.stuck),
        ),
        _decode_leg(facts, router, decode),
        *_numbers(prefill, decode),
        *failures,
    ]
    twice = facts.two_looks or (age or 0) >= LONG_MS
    agreed = all(c.agreed for c in prefill.stuck)
    sure = twice and agreed and (idle or not alive)
    state = "answered and not read" if len(decode.unread) >= lost else "not there"
    return Verdict(
        code=Verdict.Code.ROUTER_DUAL_LEG,
        hop="router",
        holder_pids=(router,),
        summary=f"The router (pid {router}) holds {count(lost, 'request')} of {who(facts, down)}, oldest "
        f"{seconds(age)}: their prefill leg is open and silent, their decode leg is {state}.",
        confidence=Level.HIGH if sure else Level.MEDIUM,
        evidence=tuple(proved),
        next_steps=(
            *(log(facts, e.pid, "what ended decode's legs") for e in decode.engines),
            log(facts, router, "which legs failed, and how", pattern="Decode server|Prefill server|error"),
            known("a pair of which one leg ended: sglang-router 0.3.2 waits for both (1800 s), smg 1.13 gives up both"),
        ),
        explains=lost,
    )


def _prefill_gone(facts: Facts, router: int, prefill: Leg, decode: Leg) -> Verdict | None:
    down = stuck(facts.to_server(router), Debt.ANSWER)
    waiting = min(len(down), len(decode.stuck))
    if waiting < 1 or prefill.owed or prefill.unclear or not sockets_seen(facts, router, *prefill.pids):
        return None
    age = oldest(down)
    waits_for_prefill = any(
        (e.gauges.handover or 0) > 0 and e.gauges.told_since(age) and _counts_nothing(e, age) and not _stands(facts, e)
        for e in decode.engines
    )
    if not waits_for_prefill or (prefill.engines and not prefill.empty):
        return None
    if any(engine.gauges.tokens_delta for engine in prefill.engines):
        return None
    if not facts.two_looks:
        return None
    gone = "is empty" if prefill.engines else "has no engine on this host"
    return Verdict(
        code=Verdict.Code.ROUTER_DUAL_LEG,
        hop="router",
        holder_pids=(router,),
        summary=f"The router (pid {router}) holds {count(waiting, 'request')} of {who(facts, down)}, oldest "
        f"{seconds(age)}: their decode leg is open and waits for prefill, their prefill leg is not there.",
        confidence=Level.MEDIUM,
        evidence=(
            _downstream(facts, router),
            evidence(
                f"decode leg: {count(len(decode.stuck), 'connection')} open, nothing answered for "
                f"{seconds(oldest(decode.stuck))}",
                *socket_refs(decode.stuck),
            ),
            evidence(f"prefill leg: no connection owed; prefill {gone}", *process_ref(facts, router)),
            *_numbers(prefill, decode),
            *_failures(facts, router),
        ),
        next_steps=(
            *(log(facts, e.pid, "what ended prefill's legs") for e in prefill.engines),
            log(facts, router, "which legs failed, and how", pattern="Decode server|Prefill server|error"),
            known("a prefill that answered an error or is gone, while decode waits for it until its own timeout"),
        ),
        explains=waiting,
    )


def _stands(facts: Facts, engine: Engine) -> bool:
    """Whether its scheduler was in one batch, or did nothing at all, over the window: then it waits for no partner."""
    mains = [p.threads[0] for pid in engine.scheduler_pids if (p := facts.processes[pid]).threads]
    idle = all(main.cpu_ms_delta == 0 and main.voluntary_switches_delta == 0 for main in mains)
    return bool(engine.batch or (mains and idle))


def _counts_nothing(engine: Engine, age_ms: float | None) -> bool:
    """Whether it counted no token in the window; where that is not known, old requests have to speak."""
    delta = engine.gauges.tokens_delta
    return (age_ms or 0.0) >= LONG_MS if delta is None else delta == 0


def _downstream(facts: Facts, router: int) -> Evidence:
    down = stuck(facts.to_server(router), Debt.ANSWER)
    return evidence(
        f"the router has read {count(len(down), 'request')} and owes each its answer, the oldest for "
        f"{seconds(oldest(down))}",
        *socket_refs(down),
    )


def _decode_leg(facts: Facts, router: int, decode: Leg) -> Evidence:
    if decode.unread:
        text = f"decode leg: {count(len(decode.unread), 'connection')} answered, and not read by the router"
        return evidence(text, *socket_refs(decode.unread))
    if decode.owed:
        text = f"decode leg: only {count(len(decode.owed), 'connection')} owed"
        return evidence(text, *socket_refs(decode.owed))
    if decode.quiet:
        text = f"decode leg: no answer owed, {count(len(decode.quiet), 'connection')} idle"
        return evidence(text, *socket_refs(decode.quiet))
    return evidence("decode leg: no connection owed, none open", *process_ref(facts, router))


def _numbers(prefill: Leg, decode: Leg) -> list[Evidence]:
    found = []
    for engine in (*prefill.engines, *decode.engines):
        gauges = engine.gauges
        if not gauges.known:
            continue
        text = (
            f"{engine.kind} (pid {engine.pid}) says: {gauges.running:.0f} running, {gauges.waiting:.0f} waiting, "
            f"{gauges.handover or 0:.0f} in its disaggregation queues"
        )
        found.append(evidence(text, *(f"metrics[{index}]" for index in gauges.indexes)))
    return found


def _failures(facts: Facts, router: int) -> list[Evidence]:
    since = facts.oldest_stuck_ms or 0
    return [
        evidence(
            f"the router's log: {finding.meaning or finding.pattern}, {finding.count} times", f"log_findings[{index}]"
        )
        for index, finding in enumerate(facts.snapshot.log_findings)
        if finding.pid == router
        and finding.pattern in _LEG_FAILED
        and finding.last_age_ms is not None
        and finding.last_age_ms <= since + STUCK_MS
    ]


def _named(leg: Leg) -> str:
    return f" (pid {', '.join(str(e.pid) for e in leg.engines)})" if leg.engines else ""
