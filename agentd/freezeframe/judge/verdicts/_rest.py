"""What every verdict carries besides its proof: hops ruled out, attribution, unknowns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from freezeframe.judge.correlate.facts import Client, Debt, Engine, Facts
from freezeframe.judge.correlate.hops import scheduler_hop
from freezeframe.judge.correlate.rates import LONGEST_S, recent_rate, token_rate
from freezeframe.judge.labels import folded
from freezeframe.judge.model import Attribution, Evidence, RuledOut, Verdict
from freezeframe.judge.verdicts._gpus import gpus_of, rests, state
from freezeframe.judge.verdicts._proof import runs, sockets_seen, stuck
from freezeframe.judge.verdicts._words import count, engine_name, evidence, forwards, process_ref, seconds, socket_refs

# Rows of a rank table among the evidence.
_RANK_ROWS = 6
# Clients in the attribution.
_CLIENTS = 20
_GPU_CODES = frozenset({Verdict.Code.GPU_FAULT, Verdict.Code.GPU_SPIN})


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleared:
    """One hop that does not hold the requests, unless a verdict says that it does."""

    ruled_out: RuledOut
    # Hops and holders of a verdict under which it is not told.
    hop: str = ""
    pids: frozenset[int] = frozenset()
    codes: frozenset[Verdict.Code] = frozenset()


def clear(facts: Facts) -> tuple[Cleared, ...]:
    """Hops that do not hold the requests, each with the evidence. An idle CPU or a thread in epoll is none."""
    found = []
    if client := _client(facts):
        found.append(Cleared(ruled_out=RuledOut(hop="client", evidence=client), hop="client"))
    found += [
        Cleared(ruled_out=RuledOut(hop="router", evidence=proved), pids=frozenset({router}))
        for router in facts.routers
        if (proved := _router(facts, router))
    ]
    kinds = Counter(engine.kind for engine in facts.engines)
    for engine in facts.engines:
        suffix = f" (pid {engine.pid})" if kinds[engine.kind] > 1 else ""
        if proved := _engine(facts, engine):
            hop = RuledOut(hop=f"{engine.kind}{suffix}", evidence=proved)
            found.append(Cleared(ruled_out=hop, pids=frozenset(engine.http_pids)))
    for engine in facts.engines:
        suffix = f" (pid {', '.join(map(str, engine.scheduler_pids))})" if kinds[engine.kind] > 1 else ""
        if proved := _scheduler(facts, engine):
            hop = RuledOut(hop=f"{scheduler_hop(engine.kind)}{suffix}", evidence=proved)
            found.append(Cleared(ruled_out=hop, pids=frozenset(engine.scheduler_pids)))
    for engine in facts.engines:
        if proved := _gpus(facts, engine):
            hop = RuledOut(hop=f"GPUs of the {engine_name(engine.kind)} (pid {engine.pid})", evidence=proved)
            found.append(Cleared(ruled_out=hop, codes=_GPU_CODES))
    return tuple(found)


def rule_out(cleared: Iterable[Cleared], verdict: Verdict) -> tuple[RuledOut, ...]:
    """Those hops that the verdict does not accuse."""
    holders = set(verdict.holder_pids)
    return tuple(
        each.ruled_out
        for each in cleared
        if not (each.hop and each.hop == verdict.hop) and not each.pids & holders and verdict.code not in each.codes
    )


def rank_table(facts: Facts, verdict: Verdict) -> tuple[Evidence, ...]:
    """Where the ranks stand beside a holder that is one of several, the minority first; none where it is told already.

    Comparing them says more than any single stack: one that is elsewhere is what the others wait for.
    """
    if any("ranks[" in fact.ref for fact in verdict.evidence):
        return ()
    held = {facts.processes[pid].engine_pid for pid in verdict.holder_pids if pid in facts.processes} - {0}
    groups: dict[int, list[int]] = {}
    for index, rank in enumerate(facts.ranks):
        if rank.engine_pid in held and rank.rank and rank.frame:
            groups.setdefault(rank.group, []).append(index)
    ranks = {index for members in groups.values() for index in members}
    if len(ranks) <= 1 or not {facts.ranks[index].pid for index in ranks} & set(verdict.holder_pids):
        return ()
    return tuple(_together(facts, members) for members in list(groups.values())[:_RANK_ROWS])


def _together(facts: Facts, members: list[int]) -> Evidence:
    first = facts.ranks[members[0]]
    labels = folded(facts.ranks[index].rank for index in members)
    phase = f" ({first.phase})" if first.phase else ""
    note = ", the minority" if first.minority else ""
    text = f"ranks: {labels} in {first.frame}{phase}{note}"
    return evidence(text, *(f"ranks[{index}]" for index in members))


def _client(facts: Facts) -> tuple[Evidence, ...]:
    """The stuck requests have left the client: each was read by the next hop or waits there."""
    waiting = [c for c in facts.connections if not forwards(facts, c.client_pid) and c.debt is Debt.ANSWER]
    waiting = stuck(waiting)
    if not waiting or len(waiting) < facts.stuck:
        return ()
    return (evidence(f"the next hop has read its {count(len(waiting), 'request')}", *socket_refs(waiting)),)


def _router(facts: Facts, router: int) -> tuple[Evidence, ...]:
    """Each request that it owes is owed to it."""
    down = stuck(facts.to_server(router))
    upstream = facts.from_client(router)
    if not sockets_seen(facts, router) or not runs(facts, router):
        return ()
    if not down:
        return (evidence("no request in its sockets is owed for long", *process_ref(facts, router)),)
    if any(c.debt is not Debt.ANSWER for c in down):
        return ()
    kinds: dict[str, int] = {}
    for connection in stuck(upstream):
        engine = facts.engine_of(connection.server_pid)
        kind = engine.kind if engine else ""
        kinds[kind] = kinds.get(kind, 0) + 1
    if "prefill" in kinds or "decode" in kinds:
        passed = min(kinds.get("prefill", 0), kinds.get("decode", 0)) or kinds.get("decode", 0)
    else:
        passed = sum(kinds.values())
    if passed < len(down):
        return ()
    text = f"has passed on each of the {count(len(down), 'request')} that it owes, and is owed their answers"
    return (evidence(text, *socket_refs(stuck(upstream))),)


def _engine(facts: Facts, engine: Engine) -> tuple[Evidence, ...]:
    if not sockets_seen(facts, *engine.http_pids):
        return ()
    served = facts.to_server(*engine.http_pids)
    if any(c.owed or c.debt is Debt.UNKNOWN for c in served):
        return ()
    backlog = [item for item in facts.listeners if item.pid in engine.http_pids and item.backlog]
    if backlog:
        return ()
    refs = socket_refs(served) or process_ref(facts, engine.pid)
    found = [evidence(f"no request in its HTTP sockets: {count(len(served), 'connection')}, none owed", *refs)]
    return (*found, *_zero_gauges(engine))


def _scheduler(facts: Facts, engine: Engine) -> tuple[Evidence, ...]:
    if not engine.scheduler_pids or not runs(facts, *engine.scheduler_pids):
        return ()
    found = list(_zero_gauges(engine))
    if not found:
        return ()
    if engine.busy is False:
        found.append(evidence(engine.busy_reason, *engine.busy_refs))
    return tuple(found)


def _gpus(facts: Facts, engine: Engine) -> tuple[Evidence, ...]:
    """None of its GPUs computes anything."""
    gpus = gpus_of(facts, engine)
    if not gpus or not all(rests(gpu) for _, gpu in gpus):
        return ()
    return tuple(evidence(f"{state(gpu)}: it rests", f"gpus[{index}]") for index, gpu in gpus)


def _zero_gauges(engine: Engine) -> tuple[Evidence, ...]:
    if not engine.accounted:
        return ()
    age = "" if engine.gauges.age_ms is None else f", written {seconds(engine.gauges.age_ms)} ago"
    refs = (f"metrics[{index}]" for index in engine.gauges.indexes)
    if engine.asleep:
        return (evidence("its scheduler sleeps its idle sleep: all its queues are empty", *engine.busy_refs),)
    if engine.gauges.running:
        text = f"its scheduler knows of {count(engine.gauges.running, 'request')}, and as many stream{age}"
    else:
        text = f"running, waiting and disaggregation queues all 0{age}"
    return (evidence(text, *refs),)


def attribute(facts: Facts) -> tuple[Attribution, ...]:
    """Who sent the requests and who gets the bytes, most stuck requests first."""
    shown = facts.clients[:_CLIENTS]
    shown += tuple(client for client in facts.clients[_CLIENTS:] if client.stray)
    return tuple(_attribution(facts, client) for client in shown)


def _attribution(facts: Facts, client: Client) -> Attribution:
    tokens = token_rate(facts, client)
    return Attribution(
        client=client.name,
        pid=client.pid,
        requests_in_flight=client.in_flight,
        oldest_age_ms=client.oldest_age_ms,
        bytes_per_s=client.bytes_per_s,
        tokens_per_s=None if tokens is None else tokens.value,
        tokens_per_s_error=None if tokens is None else tokens.error,
        stray=client.stray,
        connections=client.connections,
        talks_to=client.talks_to,
        bypasses_router=client.bypasses_router,
        bytes_per_s_10s=recent_rate(facts.snapshot, client, 10),
        bytes_per_s_60s=recent_rate(facts.snapshot, client, LONGEST_S),
    )
