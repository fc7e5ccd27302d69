"""PROCESS_DEAD: a process of the path is a zombie, or ended during the capture.

Proof: its state is Z or X, or the capture held it and it ended. The kernel says so: HIGH.
Clients end whenever they are done and are left out, and so is what ended with nobody connected to it or its engine: a
router or an engine of somebody else on this host, ended on purpose. A process that was gone before the capture leaves
nothing here: the engine it belonged to, or a leg that is missing, tells of it.
Lookalike: a part of an engine that was ended as a whole, before init takes it from the table.
"""

from __future__ import annotations

from freezeframe.judge.correlate.connections import ENGINE_PARTS
from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.model import Confidence, Process, Verdict
from freezeframe.judge.verdicts._processes import hop_of, path_processes, waiting_for
from freezeframe.judge.verdicts._steps import known, log, restart, step
from freezeframe.judge.verdicts._words import count, evidence, process, process_ref, socket_refs

Level = Confidence.Level
Role = Process.Role

_PARTS = ENGINE_PARTS - {Role.ENGINE_HTTP}


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per dead process."""
    servers = [p for p in path_processes(facts) if p.role is not Process.Role.CLIENT]
    return tuple(_verdict(facts, p) for p in servers if _dead(facts, p))


def _dead(facts: Facts, p: Process) -> bool:
    if p.state in {"Z", "X"} and p.role not in _PARTS:
        return True
    return (p.exited or p.state in {"Z", "X"}) and _is_connected(facts, p)


def _is_connected(facts: Facts, p: Process) -> bool:
    engine = next((e for e in facts.engines if p.pid in e.pids or e.pid == p.engine_pid), None)
    pids = engine.http_pids if engine else (p.pid,)
    return bool(facts.to_server(*pids) or facts.from_client(*pids))


def _verdict(facts: Facts, p: Process) -> Verdict:
    waiting = waiting_for(facts, p)
    zombie = p.state in {"Z", "X"}
    how = "is a zombie: it has ended and its parent has not noticed" if zombie else "ended during the capture"
    proved = [evidence(f"{process(facts, p.pid)} {how}", *process_ref(facts, p.pid))]
    if waiting:
        proved.append(evidence(f"{count(len(waiting), 'request')} wait behind it", *socket_refs(waiting)))
    return Verdict(
        code=Verdict.Code.PROCESS_DEAD,
        hop=hop_of(facts, p),
        holder_pids=(p.pid,),
        summary=f"The {hop_of(facts, p)} process {process(facts, p.pid)} {how}.",
        confidence=Level.HIGH,
        evidence=tuple(proved),
        next_steps=(
            log(facts, p.pid, "its last lines"),
            step(f"dmesg -T | grep -w {p.pid}", "what the kernel says of its end"),
            restart(facts, p.engine_pid or p.pid, "an engine goes as a whole"),
            *((known("an engine whose core is dead while its HTTP process answers"),) if p.role in _PARTS else ()),
        ),
        explains=len(waiting),
    )
