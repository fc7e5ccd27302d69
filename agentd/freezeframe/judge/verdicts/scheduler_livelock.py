"""SCHEDULER_LIVELOCK: a scheduler goes round in its admission, and nothing that waits is ever admitted.

Proof, with two looks: requests have been owed by the engine's HTTP process for LONG_MS or longer and no byte went to
any of its clients; its waiting gauges are above 0, its running gauge is 0, neither known to be older than these
requests, and it counted no token in the window; all its processes can run; and the main thread of a scheduler used
LIVELOCK of the window in CPU time, or never slept in it, and at both looks is in the code that an empty queue never
reaches (SGLang's `calc_priority` or `add_one_req` under `get_next_batch_to_run`, vLLM's `schedule`). HIGH when tokens
are counted and none was; else MEDIUM.

Lookalikes: an idle scheduler of SGLang, which burns a core by design and passes `get_next_batch_to_run` each time, with
a gauge that was written before; a long prefill with a queue behind it, which is in its batch; a queue that is sorted
while requests run; a scheduler that waits for others or sleeps (SCHEDULER_QUEUE).
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Engine, Facts
from freezeframe.judge.correlate.hops import scheduler_hop
from freezeframe.judge.correlate.phases import ADMISSION
from freezeframe.judge.correlate.ranks import rank_index, stands
from freezeframe.judge.correlate.thresholds import LIVELOCK, LONG_MS, STARVED
from freezeframe.judge.model import Confidence, Process, Verdict
from freezeframe.judge.verdicts._proof import for_clients, gets_bytes, runs, stuck
from freezeframe.judge.verdicts._queue import ask_for_room, keeps_waiting, queue_evidence
from freezeframe.judge.verdicts._steps import known, step
from freezeframe.judge.verdicts._words import count, evidence, oldest, process_ref, seconds, socket_refs, who

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
    owed = [c for c in waiting if c.age_ms is not None and c.age_ms >= LONG_MS]
    if gauges.waiting is None or gauges.running is None or not keeps_waiting(engine, owed):
        return None
    spinning = [p for pid in engine.scheduler_pids if _goes_round(facts, p := facts.processes[pid])]
    if not spinning or not for_clients(facts, owed) or gets_bytes(served) or not runs(facts, *engine.pids):
        return None
    hop, age = scheduler_hop(engine.kind), seconds(oldest(owed))
    holders = tuple(p.pid for p in spinning)
    index = rank_index(facts.ranks)
    proved = []
    for process in spinning:
        entry = facts.mains.get(process.pid)
        first, second = stands(process.pid, facts.mains)
        place = first.place if first == second else f"{first.place}, then {second.place}"
        share = 100 * (process.threads[0].cpu_ms_delta or 0.0) / facts.window_ms
        text = f"pid {process.pid} is in its admission at both looks ({place}), at {share:.0f} % of a core"
        refs = (f"ranks[{index[process.pid]}]", *((f"python_threads[{entry[0]}]",) if entry else ()))
        proved.append(evidence(text, *refs, *process_ref(facts, process.pid)))
    proved.append(queue_evidence(engine))
    proved.append(evidence(f"{count(len(owed), 'request')} owed, the oldest for {age}", *socket_refs(owed)))
    return Verdict(
        code=Verdict.Code.SCHEDULER_LIVELOCK,
        hop=hop,
        holder_pids=holders,
        summary=f"The {hop} (pid {', '.join(map(str, holders))}) goes round in its admission and admits none of "
        f"{count(gauges.waiting, 'waiting request')} of {who(facts, owed)}, oldest {age}.",
        confidence=Level.HIGH if gauges.tokens_delta == 0 else Level.MEDIUM,
        evidence=tuple(proved),
        next_steps=(
            ask_for_room(facts, engine),
            step(
                f"freezeframe snap --profile 5 -p {holders[0]} -o loop.ffz; freezeframe show loop.ffz profile",
                "the loop, with its share of each function",
            ),
            known("a scheduler that goes round without admitting: process R at 100 %, GPU idle, HTTP fine"),
        ),
        # Those that came since wait for the same.
        explains=min(round(gauges.waiting), len(waiting)),
    )


def _goes_round(facts: Facts, process: Process) -> bool:
    entry = facts.mains.get(process.pid)
    if entry is None or entry[1].same_at_second_look is None or not process.threads:
        return False
    main = process.threads[0]
    spent = main.cpu_ms_delta
    # On a busy host it may wait for a core instead, and never sleeps.
    ready = main.state == main.state_after == "R" and main.voluntary_switches_delta == 0
    if spent is None or spent < (STARVED if ready else LIVELOCK) * facts.window_ms:
        return False
    return all(look.phase == ADMISSION for look in stands(process.pid, facts.mains))
