"""Facts -> Verdict: pure, one rule per file, listed in one tuple.

Every file here whose name has no underscore in front is one rule: `rule(facts)` gives the verdicts that it proves, with
the proof in the file's docstring. May import `judge.correlate`, `judge.model` and the standard library's data tools.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from freezeframe.judge.correlate import Facts, correlate
from freezeframe.judge.model import Snapshot, Verdict
from freezeframe.judge.verdicts import (
    client_not_reading,
    client_not_sending,
    deadlock,
    decode_stalled,
    detokenizer,
    engine_handoff,
    engine_holds,
    engine_http_blocked,
    engine_not_accepting,
    gpu_fault,
    gpu_spin,
    host_starved,
    idle,
    network_stalled,
    not_stuck,
    pd_bootstrap,
    pd_transfer,
    prefill_stalled,
    process_dead,
    process_stopped,
    process_uninterruptible,
    proxy_holds,
    ranks_diverged,
    router_dual_leg,
    router_holds,
    router_lost_reply,
    router_no_workers,
    router_not_accepting,
    router_queue,
    scheduler_livelock,
    scheduler_queue,
    undetermined,
    zombie_upstream,
)
from freezeframe.judge.verdicts._rest import attribute, clear, rank_table, rule_out
from freezeframe.judge.verdicts._steps import traces

__all__ = ["RULES", "conclude", "concluded", "judge"]

# What tells of collectives and kernels helps with these.
_BATCHES = frozenset(
    {
        Verdict.Code.GPU_SPIN,
        Verdict.Code.RANKS_DIVERGED,
        Verdict.Code.DECODE_STALLED,
        Verdict.Code.PREFILL_STALLED,
    }
)

Rule = Callable[[Facts], tuple[Verdict, ...]]

# By cause: host, process and network faults, then specific codes, then generic ones. Within one group the verdict
# that explains more stuck requests comes first.
RULES: tuple[tuple[Rule, ...], ...] = (
    (host_starved.rule,),
    (gpu_fault.rule, process_dead.rule, process_stopped.rule, process_uninterruptible.rule),
    (network_stalled.rule,),
    (deadlock.rule,),
    (ranks_diverged.rule,),
    (gpu_spin.rule,),
    (
        client_not_reading.rule,
        engine_http_blocked.rule,
        engine_not_accepting.rule,
        router_dual_leg.rule,
        router_not_accepting.rule,
        router_queue.rule,
        router_lost_reply.rule,
        detokenizer.rule,
        decode_stalled.rule,
        prefill_stalled.rule,
        pd_bootstrap.rule,
        pd_transfer.rule,
        scheduler_livelock.rule,
        scheduler_queue.rule,
    ),
    (engine_handoff.rule, engine_holds.rule, router_holds.rule, proxy_holds.rule),
    # These explain no request that hangs further on.
    (router_no_workers.rule,),
    (client_not_sending.rule, zombie_upstream.rule),
)
# When none of these stands: the first of these that does.
OTHERWISE: tuple[Rule, ...] = (not_stuck.rule, idle.rule, undetermined.rule)


def judge(facts: Facts) -> tuple[Verdict, ...]:
    """Every verdict that stands, the principal one first; at least one."""
    found: list[Verdict] = []
    for rules in RULES:
        group = [verdict for rule in rules for verdict in rule(facts)]
        found += sorted(group, key=lambda verdict: -verdict.explains)
    for rule in OTHERWISE if not found else ():
        found += rule(facts)
        if found:
            break
    attribution = attribute(facts)
    cleared = clear(facts)
    ambiguous = (facts.group_reason,) if facts.stuck and facts.group is None else ()
    return tuple(
        replace(
            verdict,
            evidence=(*verdict.evidence, *rank_table(facts, verdict)),
            next_steps=(*verdict.next_steps, *_ready(facts, verdict)),
            ruled_out=rule_out(cleared, verdict),
            unknowns=(*verdict.unknowns, *facts.unknowns, *ambiguous),
            attribution=attribution,
        )
        for verdict in found
    )


def _ready(facts: Facts, verdict: Verdict) -> tuple[str, ...]:
    return traces(facts, verdict.holder_pids) if verdict.code in _BATCHES else ()


def conclude(snapshot: Snapshot) -> Snapshot:
    """Correlate and judge: the snapshot with edges, hops, requests, verdict and findings. Old files go through it."""
    return concluded(snapshot, correlate([snapshot]))


def concluded(snapshot: Snapshot, facts: Facts) -> Snapshot:
    """The snapshot with what its facts prove."""
    findings = judge(facts)
    verdict = findings[0]
    holders = set(verdict.holder_pids)
    hops = tuple(replace(hop, holds=hop.name == verdict.hop or bool(holders & set(hop.pids))) for hop in facts.hops)
    return replace(
        snapshot,
        edges=facts.edges,
        hops=hops,
        requests=facts.requests,
        metrics=facts.snapshot.metrics,
        asyncio_tasks=facts.tasks,
        ranks=facts.ranks,
        verdict=verdict,
        findings=findings,
    )
