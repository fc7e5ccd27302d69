"""UNDETERMINED: requests are stuck, or may be, and no rule is proved. Says which evidence is missing.

It stands when no other verdict does.
"""

from __future__ import annotations

import shlex

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.correlate.thresholds import LONG_MS
from freezeframe.judge.model import Confidence, Outcome, Process, Verdict
from freezeframe.judge.verdicts._proof import answered_by_routers, stalled, stuck
from freezeframe.judge.verdicts._steps import ask, step
from freezeframe.judge.verdicts._tasks import handed_to_core, tasks_of
from freezeframe.judge.verdicts._words import count, evidence, oldest, process, process_ref, seconds, socket_refs

Level = Confidence.Level
Role = Process.Role
# What an engine is made of besides its HTTP process.
_PARTS = frozenset({Role.SCHEDULER, Role.WORKER, Role.DETOKENIZER, Role.DP_CONTROLLER, Role.TOKENIZER_WORKER})
_NAMED = 3
_AGAIN = "sleep 10; freezeframe snap -o again.ffz; freezeframe diff FILE again.ffz"


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """Exactly one verdict."""
    if not facts.routers and not facts.engines:
        return (_verdict(_nobody(facts), facts),)
    if facts.stuck:
        text = f"{count(facts.stuck, 'request')} wait, oldest {seconds(facts.oldest_stuck_ms)}, and no hop is proved"
        return (_verdict(f"{text} to hold them.", facts),)
    if not facts.collected("snapshot_sockets"):
        return (_verdict("The sockets were not all seen: whether requests wait is not known.", facts),)
    if (quiet := sum(len(stalled(facts, engine)) for engine in facts.engines)) > 0:
        text = (
            f"No answer is owed, but {count(quiet, 'connection')} to engines are open and quiet for too long to be idle"
        )
        return (_verdict(f"{text}: answers may have stalled.", facts),)
    if answered_by_routers(facts):
        text = "Clients get answers, and none comes from an engine: the router may refuse all, or answer by itself."
        return (_verdict(text, facts),)
    return (_verdict("No request of a client is owed, but not all that was seen is at rest.", facts),)


def _nobody(facts: Facts) -> str:
    """Why there is no router and no engine to judge."""
    listed = facts.outcomes.get("find_processes")
    if listed is not None and listed.status not in {Outcome.Status.OK, Outcome.Status.PARTIAL}:
        return f"The processes of this host could not be listed: {listed.detail or listed.status.name.lower()}."
    parts = [p for p in facts.snapshot.processes if p.role in _PARTS]
    if parts:
        names = ", ".join(process(facts, p.pid) for p in parts[:_NAMED])
        more = f" and {len(parts) - _NAMED} more" if len(parts) > _NAMED else ""
        return (
            f"Parts of an engine run here without its HTTP process: {names}{more}. It has ended, or it runs on another "
            "host."
        )
    return "No router and no engine was found on this host."


def _verdict(summary: str, facts: Facts) -> Verdict:
    proved = []
    for hop in facts.hops:
        servers = [c for c in facts.connections if c.server_pid in hop.pids]
        if waiting := stuck(servers):
            text = f"{hop.name}: owes {count(len(waiting), 'answer')}, the oldest for {seconds(oldest(waiting))}"
            proved += [evidence(text, *socket_refs(waiting)), *tasks_of(facts, waiting)]
    for engine in facts.engines:
        if engine.busy_reason:
            text = f"{engine.kind} (pid {engine.pid}): {engine.busy_reason}"
            proved.append(evidence(text, *(engine.busy_refs or process_ref(facts, engine.pid))))
    return Verdict(
        code=Verdict.Code.UNDETERMINED,
        summary=summary,
        confidence=Level.LOW,
        evidence=tuple(proved),
        next_steps=_next_steps(facts),
        explains=0,
    )


def _next_steps(facts: Facts) -> tuple[str, ...]:
    steps = [
        f"Get {outcome.collector}: {outcome.hint}"
        for outcome in facts.outcomes.values()
        if outcome.hint and _missing(outcome)
    ]
    if not facts.two_looks:
        steps.append(step("freezeframe snap --window 1", "two looks tell what moves"))
    elif facts.stuck and (facts.oldest_stuck_ms or 0) < LONG_MS:
        steps.append(step(_AGAIN, "silence of that length tells a long prefill from a stuck request"))
    # A core that is paused keeps what comes and tells nothing of it.
    steps += [
        ask(facts, engine.pid, "/is_paused", "whether its core was paused with these in it: POST /resume lets it go on")
        for engine in facts.engines
        if handed_to_core(facts, stuck(facts.to_server(*engine.http_pids)))
    ]
    if any(not engine.gauges.known for engine in facts.engines):
        mute = ", ".join(str(engine.pid) for engine in facts.engines if not engine.gauges.known)
        steps.append(f"Start pid {mute} with --enable-metrics: its queues would tell where requests are.")
    if facts.group is None and facts.stuck:
        client = next((str(c.pid or c.address) for c in facts.clients if c.stuck), "ADDR")
        steps.append(step(f"freezeframe snap --client {shlex.quote(client)}", "names the client that matters"))
    if not facts.routers and not facts.engines:
        steps.append(
            step(
                "ss -tlnp",
                "what listens: name it with snap --pid PID, or give it a role in the configuration: [[roles]]",
            )
        )
    return tuple(steps) or (step(_AGAIN, "what has not moved in between is stuck"),)


def _missing(outcome: Outcome) -> bool:
    return outcome.status not in {Outcome.Status.OK, Outcome.Status.UNSPECIFIED}
