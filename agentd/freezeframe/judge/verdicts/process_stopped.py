"""PROCESS_STOPPED: a process of the path is stopped by a signal, held by a tracer, or in a frozen cgroup.

Proof: its state is T, or t, at the one look or at both, or its cgroup is frozen. The kernel itself says so: HIGH; for a
tracer (t) seen once only, MEDIUM, as a debugger may hold it for milliseconds.
The requests behind it are its backlog. It stands without any, since none would get through.

Lookalikes: a sleeping process; a stop that was over at the second look; stopped programs that have no connection to
the path.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.model import Confidence, Process, Verdict
from freezeframe.judge.verdicts._processes import hop_of, path_processes, waiting_for
from freezeframe.judge.verdicts._words import count, evidence, oldest, process, process_ref, seconds, socket_refs

Level = Confidence.Level


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per stopped process."""
    return tuple(_verdict(facts, p) for p in path_processes(facts) if not p.exited and _stopped(p))


def _stopped(p: Process) -> bool:
    after = p.threads[0].state_after if p.threads else ""
    return p.frozen or (p.state in {"T", "t"} and after in {"", "T", "t"})


def _verdict(facts: Facts, p: Process) -> Verdict:
    waiting = waiting_for(facts, p)
    if p.frozen:
        how, mend = "in a frozen cgroup", f"Thaw its cgroup {p.cgroup or '(unknown)'}: write 0 to cgroup.freeze."
    elif p.state == "t" or p.tracer_pid:
        how, mend = f"held by a tracer (pid {p.tracer_pid})", f"Detach the debugger, pid {p.tracer_pid}."
    else:
        how, mend = "stopped by a signal", f"Let it go on: kill -CONT {p.pid}; find who sent SIGSTOP or SIGTSTP."
    proved = [evidence(f"{process(facts, p.pid)} is {how}, state {p.state}", *process_ref(facts, p.pid))]
    if waiting:
        text = f"{count(len(waiting), 'request')} wait behind it, the oldest for {seconds(oldest(waiting))}"
        proved.append(evidence(text, *socket_refs(waiting)))
    behind = f"; {count(len(waiting), 'request')} wait behind it" if waiting else ""
    passing = p.state == "t" and not p.frozen and not facts.two_looks
    return Verdict(
        code=Verdict.Code.PROCESS_STOPPED,
        hop=hop_of(facts, p),
        holder_pids=(p.pid,),
        summary=f"The {hop_of(facts, p)} process {process(facts, p.pid)} is {how}{behind}.",
        confidence=Level.MEDIUM if passing else Level.HIGH,
        evidence=tuple(proved),
        next_steps=(mend,),
        explains=len(waiting),
    )
