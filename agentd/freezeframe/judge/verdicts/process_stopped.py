"""PROCESS_STOPPED: a process of the path is stopped by a signal, held by a tracer, or in a frozen cgroup.

Proof: its state is T, or t, at the one look or at both, or its cgroup is frozen. The kernel itself says so: HIGH; for a
tracer (t) seen once only, MEDIUM, as a debugger may hold it for milliseconds.
The requests behind it are its backlog. It stands without any, since none would get through.

A stopped process that is on no path is told where a thread of the path waits for it alone (`_stopped_outside`).

Lookalikes: a sleeping process; a stop that was over at the second look; stopped programs that have no connection to
the path.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.model import Confidence, Process, Verdict
from freezeframe.judge.verdicts._processes import hop_of, path_processes, served_with, waiting_for
from freezeframe.judge.verdicts._steps import step, thaw
from freezeframe.judge.verdicts._stopped_outside import outside
from freezeframe.judge.verdicts._tasks import tasks_of
from freezeframe.judge.verdicts._words import count, evidence, oldest, process, process_ref, seconds, socket_refs

Level = Confidence.Level


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per stopped process, and one for all that are in one frozen cgroup."""
    stopped = [p for p in path_processes(facts) if not p.exited and _stopped(p)]
    groups: dict[str | int, list[Process]] = {}
    for p in stopped:
        groups.setdefault(p.cgroup if p.frozen and p.cgroup else p.pid, []).append(p)
    return (*(_verdict(facts, group) for group in groups.values()), *outside(facts))


def _stopped(p: Process) -> bool:
    after = p.threads[0].state_after if p.threads else ""
    return p.frozen or (p.state in {"T", "t"} and after in {"", "T", "t"})


def _verdict(facts: Facts, group: list[Process]) -> Verdict:
    p = max(group, key=lambda each: len(waiting_for(facts, each)))
    waiting = waiting_for(facts, p)
    if p.frozen:
        how, mend = "in a frozen cgroup", _thaw(p)
    elif p.state == "t" or p.tracer_pid:
        how = f"held by a tracer (pid {p.tracer_pid})"
        mend = step(f"ps -o pid,ppid,user,lstart,args -p {p.tracer_pid or p.pid}", "the debugger: detach it there")
    else:
        how = "stopped by a signal"
        mend = step(f"kill -CONT {p.pid}", "lets it go on; find who sent SIGSTOP or SIGTSTP")
    proved = [
        evidence(f"{process(facts, each.pid)} is {how}, state {each.state}", *process_ref(facts, each.pid))
        for each in group
    ]
    others = f" and {count(len(group) - 1, 'other')} of its cgroup" if len(group) > 1 else ""
    if waiting:
        text = f"{count(len(waiting), 'request')} wait behind it, the oldest for {seconds(oldest(waiting))}"
        proved.append(evidence(text, *socket_refs(waiting)))
    # Answers that had begun and stand still, too.
    proved += tasks_of(facts, served_with(facts, p))
    verb = "are" if len(group) > 1 else "is"
    behind = f"; {count(len(waiting), 'request')} wait behind it" if waiting else ""
    passing = p.state == "t" and not p.frozen and not facts.two_looks
    return Verdict(
        code=Verdict.Code.PROCESS_STOPPED,
        hop=hop_of(facts, p),
        holder_pids=tuple(each.pid for each in group),
        summary=f"The {hop_of(facts, p)} process {process(facts, p.pid)}{others} {verb} {how}{behind}.",
        confidence=Level.MEDIUM if passing else Level.HIGH,
        evidence=tuple(proved),
        next_steps=(mend,),
        explains=len(waiting),
    )


def _thaw(p: Process) -> str:
    if not p.cgroup:
        return step(f"cat /proc/{p.pid}/cgroup", "its cgroup: write 0 to the cgroup.freeze there")
    return thaw(p.cgroup, "thaws it; find who froze it")
