"""The wait-for graph: which threads can never go on, and the cycles among them.

A thread waits for one of several others to act: for its lock's one owner, or for any thread of the processes that can
end the wait. It is stuck for good when each of those is stuck for good, too. So: begin with every thread that waits
without a timeout for parties that are all known, and take away, until nothing changes, each one that somebody outside
can release. What is left is a deadlock, and has a cycle. A thread of which anything is unknown can act.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from freezeframe.judge.model import AsyncioTask, Confidence, Lock, Snapshot, Waiter

Level = Confidence.Level
Party = tuple[int, int]


# Thread ids are below it (PID_MAX_LIMIT); an asyncio task is told by its address, which is above.
_TIDS = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One thread, or asyncio task, that waits."""

    # Process and thread, or address of the task.
    party: Party
    # "thread 4712", "task worker-1".
    name: str
    # Those any of which can end the wait.
    releasers: frozenset[Party]
    confidence: Confidence.Level
    # What it waits for: kind of lock, address or object.
    kind: str
    what: str
    operation: str
    # Where it stands in the snapshot: "locks[3]".
    ref: str


def waits_of(snapshot: Snapshot) -> dict[Party, Wait]:
    """Waits that end only when a known party acts."""
    threads = {
        process.pid: frozenset((process.pid, thread.tid) for thread in process.threads)
        for process in snapshot.processes
        # Of a process whose threads are not all listed, or that has just ended, nothing is concluded.
        if not process.exited and process.threads and len(process.threads) >= process.thread_count
    }
    found: dict[Party, Wait] = {}
    for index, lock in enumerate(snapshot.locks):
        for waiter in lock.waiters:
            wait = _wait(lock, waiter, index, threads)
            if wait is not None:
                found[wait.party] = wait
    for wait in _for_asyncio_locks(snapshot.asyncio_tasks):
        found[wait.party] = wait
    return found


def _for_asyncio_locks(tasks: Sequence[AsyncioTask]) -> Iterable[Wait]:
    """Tasks that wait for a lock of another one, or for one other task alone."""
    sound = [task for task in tasks if not task.doubt and task.same_at_second_look is not False]
    known = {(task.pid, task.address) for task in sound}
    owners: dict[tuple[int, str], list[AsyncioTask]] = {}
    for task in sound:
        for lock in task.holds_locks:
            owners.setdefault((task.pid, lock), []).append(task)
    for index, task in enumerate(tasks):
        if (task.pid, task.address) not in known or task.waits_with_timeout or task.state != "waiting":
            continue
        having = owners.get((task.pid, task.waits_for_lock), [])
        if len(having) == 1:
            yield _of_task(task, index, having[0].address, "asyncio_lock", task.waits_for_lock)
        elif len(task.waits_for) == 1 and (task.pid, task.waits_for[0].address) in known:
            edge = task.waits_for[0]
            if edge.kind != "wait_for":
                yield _of_task(task, index, edge.address, "task", f"task {edge.address}")


def _of_task(task: AsyncioTask, index: int, releaser: str, kind: str, what: str) -> Wait:
    return Wait(
        party=(task.pid, int(task.address, 16)),
        name=f"task {task.name}",
        releasers=frozenset({(task.pid, int(releaser, 16))}),
        # Whoever has a task may cancel it.
        confidence=Level.MEDIUM,
        kind=kind,
        what=what,
        operation="",
        ref=f"asyncio_tasks[{index}]",
    )


def name_of(party: Party, waits: Mapping[Party, Wait]) -> str:
    """What a party is called."""
    known = waits.get(party)
    if known is not None:
        return known.name
    return f"thread {party[1]}" if party[1] < _TIDS else f"task {party[1]:#x}"


def _wait(lock: Lock, waiter: Waiter, index: int, threads: Mapping[int, frozenset[Party]]) -> Wait | None:
    if not waiter.endless or not waiter.steady:
        return None
    party = lock.pid, waiter.tid
    if lock.owner_confidence not in (Level.MEDIUM, Level.HIGH):
        return None
    if lock.owner_tid is not None:
        releasers = frozenset({(lock.owner_pid or lock.pid, lock.owner_tid)})
    elif lock.releaser_pids and all(pid in threads for pid in lock.releaser_pids):
        # Who waits for bytes of his own process may wait for a signal, whose handler writes them.
        if lock.pid in lock.releaser_pids:
            return None
        releasers = frozenset().union(*(threads[pid] for pid in lock.releaser_pids))
    else:
        return None
    return Wait(
        party=party,
        name=f"thread {waiter.tid}",
        releasers=releasers,
        confidence=lock.owner_confidence,
        kind=lock.kind,
        what=lock.object or lock.address,
        operation=waiter.operation,
        ref=f"locks[{index}]",
    )


def deadlocks(waits: Mapping[Party, Wait]) -> tuple[tuple[Wait, ...], ...]:
    """Cycles of waits that nobody outside can end, each once, beginning with its lowest party."""
    stuck = dict(waits)
    changed = True
    while changed:
        free = [party for party, wait in stuck.items() if not wait.releasers <= stuck.keys()]
        changed = bool(free)
        for party in free:
            del stuck[party]
    cycles: list[tuple[Wait, ...]] = []
    seen: set[Party] = set()
    for start in sorted(stuck):
        path: list[Party] = []
        at = start
        while at not in seen and at not in path:
            path.append(at)
            # Any releaser is stuck as well: the lowest one makes the same cycle found once.
            at = min(stuck[at].releasers)
        if at in path:
            cycles.append(tuple(stuck[party] for party in _from_lowest(path[path.index(at) :])))
        seen.update(path)
    return tuple(cycles)


def _from_lowest(cycle: list[Party]) -> list[Party]:
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


def behind(waits: Mapping[Party, Wait], cycle: Iterable[Wait]) -> tuple[Party, ...]:
    """Parties that wait, over any number of others, for one of a cycle."""
    held = {wait.party for wait in cycle}
    members = set(held)
    changed = True
    while changed:
        more = {party for party, wait in waits.items() if party not in held and wait.releasers <= held}
        held |= more
        changed = bool(more)
    return tuple(sorted(held - members))


def end_of_chain(waits: Mapping[Party, Wait], start: Party) -> tuple[Party, ...]:
    """Parties from one on along whom it waits for alone, up to the one that holds up all."""
    chain = [start]
    while chain[-1] in waits:
        releasers = waits[chain[-1]].releasers
        if len(releasers) != 1 or (following := next(iter(releasers))) in chain:
            break
        chain.append(following)
    return tuple(chain)
