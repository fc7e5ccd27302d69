"""Stopped processes that are on no path: a thread of the path waits for one of them alone.

Proof: the thread waits without a timeout, seen twice in that wait, for bytes or the end of a process that is stopped,
and nobody else has the other end open: a full pipe to a stopped logger. HIGH where the kernel shows every process's
descriptors, else MEDIUM.

Lookalikes: a full pipe whose reader is slow; a wait that has a timeout; a pipe that others read, too.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.model import Confidence, Lock, Process, Verdict
from freezeframe.judge.verdicts._processes import hop_of, path_processes, waiting_for
from freezeframe.judge.verdicts._steps import step
from freezeframe.judge.verdicts._words import count, evidence, oldest, process, seconds, socket_refs

Level = Confidence.Level
_NAMED = 4


def outside(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per stopped process off the path that threads of the path wait for."""
    path = {p.pid: p for p in path_processes(facts) if not p.exited}
    waiting: dict[int, list[tuple[int, Lock]]] = {}
    for index, lock in enumerate(facts.snapshot.locks):
        holder = lock.owner_pid
        stuck = any(waiter.endless and waiter.steady for waiter in lock.waiters)
        if stuck and lock.pid in path and holder and holder not in path and lock.owner_doing == "stopped":
            waiting.setdefault(holder, []).append((index, lock))
    return tuple(_verdict(facts, path, holder, locks) for holder, locks in waiting.items())


def _verdict(facts: Facts, path: dict[int, Process], holder: int, locks: list[tuple[int, Lock]]) -> Verdict:
    pids = tuple(dict.fromkeys(lock.pid for _, lock in locks))
    owed = [each for pid in pids for each in waiting_for(facts, path[pid])]
    hop = hop_of(facts, path[pids[0]])
    proved = [evidence(_chain(facts, lock, holder), f"locks[{index}]") for index, lock in locks]
    if owed:
        text = (
            f"{count(len(owed), 'request')} wait for {process(facts, pids[0])}, the oldest for {seconds(oldest(owed))}"
        )
        proved.append(evidence(text, *socket_refs(owed)))
    behind = f"; {count(len(owed), 'request')} wait behind it" if owed else ""
    sure = all(lock.owner_confidence is Level.HIGH for _, lock in locks)
    return Verdict(
        code=Verdict.Code.PROCESS_STOPPED,
        hop=hop,
        holder_pids=(holder,),
        summary=f"{process(facts, holder)} is stopped, and the {hop} waits for it{behind}.",
        confidence=Level.HIGH if sure else Level.MEDIUM,
        evidence=tuple(proved),
        next_steps=(step(f"kill -CONT {holder}", "lets it go on; find who stopped it"),),
        explains=len(owed),
    )


def _chain(facts: Facts, lock: Lock, holder: int) -> str:
    threads = ", ".join(str(waiter.tid) for waiter in lock.waiters[:_NAMED])
    verb = lock.waiters[0].operation.partition(" ")[0]
    what = f"{verb} {lock.object}" if lock.kind in {"pipe", "socket"} else lock.object
    return f"thread {threads} of {process(facts, lock.pid)} ▸ {what} ▸ {process(facts, holder)}, stopped"
