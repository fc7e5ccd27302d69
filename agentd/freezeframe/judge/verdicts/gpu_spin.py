"""GPU_SPIN: every rank of an engine waits for its GPU, and the GPUs are busy without computing: a kernel that spins.

Proof, with two looks: requests have been owed by the engine's HTTP process for LONG_MS or longer, no byte went to any
of its clients and no token was counted in the window; all its processes can run; the main thread of each of its ranks
is in a GPU synchronise at both looks, at one place; and each GPU on which the engine has memory says that it is in use
for SPINS_PERCENT or more at SPIN_POWER of its power limit or less, and that nothing holds its clocks back.
HIGH when tokens are counted and none was; else MEDIUM.

Lookalikes: a step that takes long, whose GPUs draw power; a small model that decodes, whose tokens move; a GPU held
back by heat or by a power brake, which draws little too; ranks of which one is elsewhere (RANKS_DIVERGED); a GPU that
an idle context shares with a busy neighbour; a GPU that no longer answers (GPU_FAULT): its last sample is no proof.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Engine, Facts
from freezeframe.judge.correlate.hops import scheduler_hop
from freezeframe.judge.correlate.phases import GPU_SYNCHRONISE
from freezeframe.judge.correlate.ranks import rank_index
from freezeframe.judge.correlate.thresholds import LONG_MS, SPIN_POWER, SPINS_PERCENT
from freezeframe.judge.model import Confidence, Gpu, Process, Rank, Verdict
from freezeframe.judge.verdicts._gpus import gpus_of, power_share, state
from freezeframe.judge.verdicts._proof import for_clients, gets_bytes, runs, stuck
from freezeframe.judge.verdicts._steps import known, log, step
from freezeframe.judge.verdicts._words import count, evidence, oldest, seconds, socket_refs, who

Level = Confidence.Level
# Clocks that are held back so explain low power at full use.
_HELD_BACK = frozenset(
    {"hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake", "power cap"}
)


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per engine."""
    if not facts.two_looks:
        return ()
    return tuple(v for engine in facts.engines if (v := _engine(facts, engine)) is not None)


def _engine(facts: Facts, engine: Engine) -> Verdict | None:
    gpus = gpus_of(facts, engine)
    if not gpus or not all(_spins(gpu, engine) for _, gpu in gpus):
        return None
    served = facts.to_server(*engine.http_pids)
    owed = [c for c in stuck(served) if c.age_ms is not None and c.age_ms >= LONG_MS]
    explains = for_clients(facts, owed)
    if not explains or engine.gauges.tokens_delta or gets_bytes(served) or not runs(facts, *engine.pids):
        return None
    ranks = _ranks(facts, engine)
    if not ranks or not all(map(_waits, ranks)):
        return None
    hop, age = scheduler_hop(engine.kind), seconds(oldest(owed))
    index = rank_index(facts.ranks)
    places = ", ".join(sorted({rank.frame for rank in ranks}))
    holders = tuple(rank.pid for rank in ranks)
    return Verdict(
        code=Verdict.Code.GPU_SPIN,
        hop=hop,
        holder_pids=holders,
        summary=f"{'All' if len(ranks) > 1 else 'The'} {count(len(ranks), 'rank')} of the {hop} "
        f"(pid {', '.join(map(str, holders))}) wait for GPUs that are busy at low power: a kernel spins; "
        f"{count(len(owed), 'request')} of {who(facts, owed)} get no token for {age}.",
        confidence=Level.HIGH if engine.gauges.tokens_delta == 0 else Level.MEDIUM,
        evidence=(
            evidence(
                f"{count(len(ranks), 'rank')} in a GPU synchronise at both looks ({places})",
                *(f"ranks[{index[rank.pid]}]" for rank in ranks),
            ),
            *(evidence(f"{state(gpu)}: it spins", f"gpus[{position}]") for position, gpu in gpus),
            evidence(f"{count(len(owed), 'request')} owed, the oldest for {age}", *socket_refs(owed)),
        ),
        next_steps=(
            step("timeout 5 nc localhost 28028", "NCCL's RAS: collectives that each rank has counted, where it is on"),
            log(facts, holders[0], "what its collectives say", pattern="NCCL|Watchdog|timeout"),
            known(
                "a kernel or collective that spins: GPUs busy at low power, counters frozen; a GPU core dump names it"
            ),
        ),
        explains=explains,
    )


def _ranks(facts: Facts, engine: Engine) -> tuple[Rank, ...]:
    """Those that run the model: the workers, where there are any."""
    mine = tuple(rank for rank in facts.ranks if rank.pid in engine.scheduler_pids)
    workers = tuple(rank for rank in mine if facts.processes[rank.pid].role is Process.Role.WORKER)
    return workers or mine


def _waits(rank: Rank) -> bool:
    return rank.phase == rank.phase_after == GPU_SYNCHRONISE and rank.frame == rank.frame_after


def _spins(gpu: Gpu, engine: Engine) -> bool:
    share = power_share(gpu)
    # What another program does there would count as the engine's.
    alone = {process.pid for process in gpu.processes} <= set(engine.pids)
    busy = (gpu.utilization_percent or 0.0) >= SPINS_PERCENT
    return alone and busy and share is not None and share <= SPIN_POWER and not _HELD_BACK & set(gpu.throttle_reasons)
