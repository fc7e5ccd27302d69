"""DEADLOCK: threads wait for each other in a cycle that nobody outside it can break.

Proof: each thread of the cycle waits without a timeout for what only others of the cycle can give, was seen twice in
that very wait and did not run in between; all these waits stood at one moment. HIGH where every lock names its owner,
or the kernel knows who holds the other end; MEDIUM where an owner is known by another thread's stack only, where the
descriptors of some process are hidden, where the end of a child is waited for, which a signal may bring, and for tasks
of asyncio, which others may cancel.

Lookalikes: a long wait for a lock whose owner runs, sleeps or waits with a timeout; many waiters of one lock; a pipe or
socket whose other end somebody else has open, too; condition variables and semaphores, which have no owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from freezeframe.judge.correlate.facts import Connection, Facts
from freezeframe.judge.correlate.waits import Party, Wait, behind, deadlocks, name_of, waits_of
from freezeframe.judge.model import Confidence, Evidence, Verdict
from freezeframe.judge.verdicts._processes import hop_of, path_processes, waiting_for
from freezeframe.judge.verdicts._steps import restart, step
from freezeframe.judge.verdicts._words import count, evidence, oldest, process, seconds, socket_refs

Level = Confidence.Level

_KINDS = {
    "pthread_mutex": "the mutex",
    "rwlock": "the read-write lock",
    "stdio_lock": "the lock of a FILE",
    "gil": "the interpreter lock",
    "rust_mutex": "the Rust mutex",
    "rust_rwlock": "the Rust read-write lock",
    "parking_lot_mutex": "the parking_lot mutex",
    "parking_lot_rwlock": "the parking_lot read-write lock",
    "join": "the end of the thread",
    "asyncio_lock": "the asyncio lock",
    "posix": "the file lock",
    "flock": "the file lock",
}
_BY_STACK = frozenset({"rust_mutex", "rust_rwlock", "parking_lot_mutex", "parking_lot_rwlock"})
# Threads of a cycle that are spelled out.
_SPELLED = 8


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per cycle."""
    waits = waits_of(facts.snapshot)
    return tuple(_verdict(facts, waits, cycle) for cycle in deadlocks(waits))


def _verdict(facts: Facts, waits: Mapping[Party, Wait], cycle: Sequence[Wait]) -> Verdict:
    others = behind(waits, cycle)
    pids = tuple(dict.fromkeys(wait.party[0] for wait in cycle))
    waiting = _stuck(facts, pids)
    confidence = min((wait.confidence for wait in cycle), key=lambda level: level.value)
    spelled = " ▸ ".join(_step(facts, wait) for wait in cycle[:_SPELLED])
    more = f" ▸ … ({count(len(cycle) - _SPELLED, 'more thread')})" if len(cycle) > _SPELLED else ""
    first = cycle[0].name
    # A process that was asked for by its pid may be on no path.
    hop = next((hop_of(facts, each) for each in path_processes(facts) if each.pid in pids), "")
    names = " and ".join(process(facts, pid) for pid in pids[:2])
    tail = f"; {count(len(waiting), 'request')} wait behind them" if waiting else ""
    proved = [evidence(f"{spelled}{more} ▸ {first}", *(wait.ref for wait in cycle))]
    proved += [_each(facts, waits, wait) for wait in cycle[:_SPELLED]]
    if others:
        named = ", ".join(name_of(party, waits) for party in others[:_SPELLED])
        proved.append(evidence(f"{len(others)} more wait for these: {named}"))
    if waiting:
        text = f"{count(len(waiting), 'request')} wait for these processes, the oldest for {seconds(oldest(waiting))}"
        proved.append(evidence(text, *socket_refs(waiting)))
    noun = "task" if all(wait.ref.startswith("asyncio") for wait in cycle) else "thread"
    who = count(len(cycle), noun) if len(cycle) > 1 else f"a {noun}"
    keep = ", ".join(wait.name for wait in cycle[:_SPELLED])
    how = "wait for each other" if len(cycle) > 1 else "waits for itself"
    return Verdict(
        code=Verdict.Code.DEADLOCK,
        hop=hop,
        holder_pids=pids,
        summary=f"Deadlock: {who} of {names} {how}, and nobody else can let them go{tail}.",
        confidence=confidence,
        evidence=tuple(proved),
        next_steps=(
            step(
                "freezeframe show FILE locks native python asyncio", f"the stacks of {keep}: keep them for a bug report"
            ),
            restart(facts, pids[0], "a deadlock does not end by itself"),
        ),
        explains=len(waiting),
    )


def _stuck(facts: Facts, pids: Iterable[int]) -> list[Connection]:
    found = []
    for pid in pids:
        if pid in facts.processes:
            found += [each for each in waiting_for(facts, facts.processes[pid]) if each not in found]
    return found


def _step(facts: Facts, wait: Wait) -> str:
    return f"{wait.name} of {process(facts, wait.party[0])} waits for {_what(wait)}"


def _what(wait: Wait) -> str:
    name = _KINDS.get(wait.kind)
    if name is None:
        verb = wait.operation.partition(" ")[0]
        return f"{wait.what} ({verb})" if verb else wait.what
    return name if wait.kind == "gil" else f"{name} {wait.what}"


def _each(facts: Facts, waits: Mapping[Party, Wait], wait: Wait) -> Evidence:
    held = ", ".join(name_of(party, waits) for party in sorted(wait.releasers)[:_SPELLED])
    sure = ", by the lock's address on its stack" if wait.kind in _BY_STACK else ""
    pids = {pid for pid, _ in wait.releasers}
    of = "" if pids == {wait.party[0]} else f" of {', '.join(process(facts, pid) for pid in sorted(pids))}"
    return evidence(f"{wait.name} waits for {_what(wait)}, which only {held}{of} can give{sure}", wait.ref)
