"""CLIENT_NOT_SENDING: the requests have not left the client.

Proof, either:
- a client was named, it is alive and can run, its sockets were seen, nothing is in flight from it and no byte is owed
  to it. MEDIUM: whether it has requests is not seen from outside;
- threads of a local Python client wait, the same at both looks, for a connection of their own pool. Each is a request
  that was not sent, even while others of this client are under way. HIGH when nothing at all is in flight.

What it cannot tell: requests that wait inside an asyncio or Go program show on no stack. When the pool is full of
requests that are stuck further on, the wait is their consequence: those verdicts come first.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.correlate.stacks import waits_before_sending
from freezeframe.judge.model import Confidence, Process, Verdict
from freezeframe.judge.verdicts._proof import runs, sockets_seen
from freezeframe.judge.verdicts._steps import stacks, step
from freezeframe.judge.verdicts._words import count, evidence, process, process_ref

Level = Confidence.Level


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per client."""
    pids = [p.pid for p in facts.snapshot.processes if p.role is Process.Role.CLIENT]
    return tuple(v for pid in pids if (v := _client(facts, pid)) is not None)


def _client(facts: Facts, pid: int) -> Verdict | None:
    if not runs(facts, pid) or not sockets_seen(facts, pid):
        return None
    flying = sum(client.in_flight for client in facts.clients if client.pid == pid)
    waiting = [
        (index, place)
        for index, thread in enumerate(facts.snapshot.python_threads)
        if thread.pid == pid and (place := waits_before_sending(thread)) is not None
    ]
    named = facts.snapshot.meta is not None and facts.snapshot.meta.client == str(pid)
    if not waiting and (flying or not named):
        return None
    refs = process_ref(facts, pid)
    proved = [evidence(f"{count(flying, 'request')} in flight from {process(facts, pid)}, which is alive", *refs)]
    what = "has no request in flight and waits for no byte"
    if waiting:
        what = f"has {count(len(waiting), 'request')} waiting for a connection of its own pool"
        proved.append(
            evidence(f"threads wait in {waiting[0][1]}", *(f"python_threads[{index}]" for index, _ in waiting))
        )
    runtime = facts.processes[pid].runtime or "another runtime"
    return Verdict(
        code=Verdict.Code.CLIENT_NOT_SENDING,
        hop="client",
        holder_pids=(pid,),
        summary=f"The client {process(facts, pid)} {what}.",
        confidence=Level.HIGH if waiting and not flying else Level.MEDIUM,
        evidence=tuple(proved),
        unknowns=() if waiting else (f"what waits inside pid {pid} ({runtime}) is not seen on its stacks",),
        next_steps=(
            step(f"ss -tanp | grep -w pid={pid}", "its connections, against the limits of its pool"),
            stacks(facts, pid, "where it waits before it sends: a pool, a semaphore, a lock"),
        ),
        explains=len(waiting),
    )
