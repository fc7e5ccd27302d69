"""DETOKENIZER: an engine makes tokens and its detokenizer does not keep up: nothing comes out.

Proof, with two looks: the engine counted more tokens in the window than health checks make; its HTTP process owes
answers for LONG_MS or longer, and no byte went to any of its clients; its HTTP process lives; and the main thread of
its detokenizer ran all the window. HIGH when answers that had begun stand still; else MEDIUM.

Lookalikes: answers that are not streamed, whose detokenizer rests between batches; a stray whose tokens go out; a
detokenizer that is stopped (PROCESS_STOPPED).
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Engine, Facts
from freezeframe.judge.correlate.thresholds import BUSY, HEALTH_TOKENS, LONG_MS
from freezeframe.judge.model import Confidence, Process, Verdict
from freezeframe.judge.verdicts._proof import for_clients, gets_bytes, loop_lives, runs, stuck
from freezeframe.judge.verdicts._steps import known, stacks
from freezeframe.judge.verdicts._words import count, evidence, oldest, process_ref, seconds, socket_refs, who

Level = Confidence.Level


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per engine."""
    if not facts.two_looks:
        return ()
    return tuple(v for engine in facts.engines if (v := _engine(facts, engine)) is not None)


def _engine(facts: Facts, engine: Engine) -> Verdict | None:
    served = facts.to_server(*engine.http_pids)
    waiting = [c for c in stuck(served) if (c.age_ms or 0.0) >= LONG_MS]
    busy = [p for pid in engine.detokenizer_pids if (p := facts.processes.get(pid)) and _works(facts, p)]
    made = engine.gauges.generated_delta
    if not busy or not for_clients(facts, waiting) or made is None or made <= HEALTH_TOKENS or gets_bytes(served):
        return None
    if not runs(facts, *engine.http_pids) or not all(loop_lives(facts, pid) for pid in engine.http_pids):
        return None
    holder = busy[0]
    return Verdict(
        code=Verdict.Code.DETOKENIZER,
        hop="detokenizer",
        holder_pids=tuple(p.pid for p in busy),
        summary=f"The detokenizer (pid {holder.pid}) does not keep up: tokens are made, and nothing comes out "
        f"for {count(len(waiting), 'request')} of {who(facts, waiting)}, oldest {seconds(oldest(waiting))}.",
        confidence=Level.HIGH if any(c.broken_off for c in waiting) else Level.MEDIUM,
        evidence=(
            evidence(
                f"the engine counted {made:.0f} tokens in the window and sent no byte",
                *(f"metrics[{index}]" for index in engine.gauges.indexes),
            ),
            evidence(f"its detokenizer (pid {holder.pid}) ran all the window", *process_ref(facts, holder.pid)),
            evidence(f"{count(len(waiting), 'request')} wait", *socket_refs(waiting)),
        ),
        next_steps=(
            stacks(facts, holder.pid, "what it does with the tokens; twice, some seconds apart"),
            known("a detokenizer whose cost grows with the square of the answer's length"),
        ),
        explains=len(waiting),
    )


def _works(facts: Facts, process: Process) -> bool:
    main = process.threads[0] if process.threads else None
    return main is not None and main.cpu_ms_delta is not None and main.cpu_ms_delta >= BUSY * facts.window_ms
