"""ENGINE_NOT_ACCEPTING: connections wait in the accept queue of the engine's listener, and its loop is not blocked.

Proof: connections with a request have waited there for STUCK_MS or longer and the queue did not shrink; the process
can run; nothing that it has accepted stands unread; and its main thread's stack is known and rests in its event loop,
or it is no Python program. Without the stack nothing is claimed: a blocked loop does not accept either.
HIGH with two looks; else MEDIUM.

Lookalikes: a burst; an engine that starts, which may listen before it serves (its loop does not run yet); a stopped
one.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Engine, Facts
from freezeframe.judge.model import Confidence, Verdict
from freezeframe.judge.verdicts._intake import has_served, intake, intake_evidence
from freezeframe.judge.verdicts._proof import loop_blocked, loop_rests, runs
from freezeframe.judge.verdicts._steps import log, step
from freezeframe.judge.verdicts._words import count, engine_name, evidence, oldest, process_ref, seconds, who

Level = Confidence.Level


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per HTTP process."""
    return tuple(
        v for engine in facts.engines for pid in engine.http_pids if (v := _engine(facts, engine, pid)) is not None
    )


def _engine(facts: Facts, engine: Engine, pid: int) -> Verdict | None:
    found = intake(facts, pid)
    process = facts.processes[pid]
    if not found.unaccepted or not found.listeners or found.unread:
        return None
    rests = loop_rests(facts, pid)
    if not runs(facts, pid) or loop_blocked(facts, pid) is not None:
        return None
    # A loop that rests is past its start; of programs without one that is not known.
    seen = not process.python and facts.collected("snapshot_python_stacks", (pid,)) and has_served(facts, pid)
    if not rests and not seen:
        return None
    proved = intake_evidence(found)
    if rests:
        entry = facts.mains.get(pid)
        refs = (f"python_threads[{entry[0]}]",) if entry else process_ref(facts, pid)
        proved.append(evidence("its main thread rests in its event loop", *refs))
    proved.append(evidence(f"it is in state {process.state}, not stopped", *process_ref(facts, pid)))
    return Verdict(
        code=Verdict.Code.ENGINE_NOT_ACCEPTING,
        hop=engine.kind,
        holder_pids=(pid,),
        summary=f"The {engine_name(engine.kind)}'s HTTP process (pid {pid}) does not accept: "
        f"{count(found.waiting, 'connection')} of {who(facts, found.unaccepted)} in its accept queue, the oldest for "
        f"{seconds(oldest(found.unaccepted))}.",
        confidence=Level.HIGH if facts.two_looks else Level.MEDIUM,
        evidence=tuple(proved),
        next_steps=(
            step(
                f"ls /proc/{pid}/fd | wc -l; grep 'open files' /proc/{pid}/limits", "whether it is out of descriptors"
            ),
            log(
                facts,
                pid,
                "descriptors, or a shutdown that waits for connections to end",
                pattern="Too many open files|shut",
            ),
        ),
        explains=found.waiting,
    )
