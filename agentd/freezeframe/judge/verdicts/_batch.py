"""A batch that a scheduler runs and that does not end, of either kind."""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Connection, Engine, Facts
from freezeframe.judge.correlate.hops import scheduler_hop
from freezeframe.judge.correlate.stacks import seen_at_work
from freezeframe.judge.correlate.thresholds import LONG_MS
from freezeframe.judge.model import Confidence, Verdict
from freezeframe.judge.verdicts._proof import for_clients, gets_bytes, runs, stalled, stuck
from freezeframe.judge.verdicts._steps import known, stacks, step
from freezeframe.judge.verdicts._words import count, evidence, oldest, quietest, seconds, socket_refs, who

Level = Confidence.Level
_SMI = "nvidia-smi --query-gpu=index,utilization.gpu,power.draw,clocks.sm --format=csv"


def stalled_batches(facts: Facts, code: Verdict.Code) -> tuple[Verdict, ...]:
    """One verdict per engine whose batch of this kind does not end; see decode_stalled for the proof."""
    if not facts.two_looks:
        return ()
    found = (_engine(facts, engine) for engine in facts.engines)
    return tuple(verdict for verdict in found if verdict is not None and verdict.code is code)


def _engine(facts: Facts, engine: Engine) -> Verdict | None:
    gauges = engine.gauges
    served = facts.to_server(*engine.http_pids)
    begun = stalled(facts, engine)
    # What a gauge says may be over: it counts beside answers that have begun, or when it is known to be of late.
    of_late = gauges.age_ms is not None and gauges.age_ms < LONG_MS
    begun_or_late = of_late or bool(begun) or any(c.broken_off for c in served)
    # An idle scheduler's gauges may say that it runs what has ended.
    works = all(seen_at_work(pid, facts.mains) for pid in engine.scheduler_pids)
    runs_by_gauge = bool(gauges.running) and engine.busy is True and begun_or_late and works
    if gauges.tokens_delta or engine.asleep or not (engine.batch or runs_by_gauge):
        return None
    late = [c for c in stuck(served) if c.age_ms is not None and c.age_ms >= LONG_MS]
    # Of an answer that has begun a router may tell its client that it is alive: nobody there is owed a byte.
    begun += [c for c in late if c.broken_off]
    owed = [c for c in late if not c.broken_off]
    explains = for_clients(facts, owed) + with_a_client(facts, begun)
    if not explains or gets_bytes(served) or not runs(facts, *engine.pids):
        return None
    decode = engine.kind == "decode" or (bool(begun) and engine.kind != "prefill")
    holders = engine.scheduler_pids or (engine.pid,)
    hop = scheduler_hop(engine.kind)
    since = seconds(max(quietest(begun) or 0, oldest(owed) or 0))
    proved = []
    if engine.batch:
        text = f"its scheduler is in {engine.batch} of one batch at both looks"
        proved.append(evidence(text, *engine.batch_refs))
    if gauges.running:
        indexes = (f"metrics[{index}]" for index in gauges.indexes)
        proved.append(evidence(f"it says that it runs {count(gauges.running, 'request')}", *indexes))
    if gauges.tokens_delta == 0:
        proved.append(evidence("it counted no token in the window", *(f"metrics[{i}]" for i in gauges.indexes)))
    if begun:
        text = f"{count(len(begun), 'answer')} begun, and quiet for longer than an idle connection is kept open"
        proved.append(evidence(text, *socket_refs(begun)))
    if owed:
        text = f"{count(len(owed), 'request')} owed, the oldest for {seconds(oldest(owed))}"
        proved.append(evidence(text, *socket_refs(owed)))
    return Verdict(
        code=Verdict.Code.DECODE_STALLED if decode else Verdict.Code.PREFILL_STALLED,
        hop=hop,
        holder_pids=holders,
        summary=f"The {hop} (pid {', '.join(map(str, holders))}) is in a batch that does not end; "
        f"{count(len(begun) + len(owed), 'request')} of {who(facts, (*begun, *owed))} get no token for {since}.",
        confidence=Level.HIGH if engine.batch else Level.MEDIUM,
        evidence=tuple(proved),
        next_steps=(
            stacks(facts, holders[0], "where its batch is; twice, some seconds apart"),
            *(
                (step(_SMI, "high use at low power: a kernel spins"),)
                # Where there is none, or the driver hangs, it would say nothing.
                if facts.snapshot.gpus
                else ()
            ),
            step("dmesg -T | grep -iE 'xid|nvrm'", "faults of its GPUs"),
            known("a batch that never ends: a kernel or a collective that spins or waits for another rank"),
        ),
        explains=explains,
    )


def with_a_client(facts: Facts, begun: list[Connection]) -> int:
    """How many of these answers some client can be waiting for: a router's clients have as many connections open."""
    routers = {c.client_pid for c in begun if c.client_pid in facts.routers}
    direct = sum(c.client_pid not in routers for c in begun)
    passed = 0
    for router in routers:
        clients = [c for c in facts.to_server(router or 0) if not c.closed_by_client and not c.moving]
        passed += min(sum(c.client_pid == router for c in begun), len(clients))
    return direct + passed
