"""The wait-for graph and DEADLOCK, on made snapshots."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.judge.correlate.waits import behind, deadlocks, end_of_chain, waits_of
from freezeframe.judge.model import (
    AsyncioTask,
    Confidence,
    Lock,
    Meta,
    Process,
    PythonThread,
    Snapshot,
    TaskEdge,
    Thread,
    Verdict,
    Waiter,
)
from freezeframe.judge.verdicts import conclude
from tests.support.scene import Scene

Level = Confidence.Level


def process(pid: int, *tids: int, count: int | None = None) -> Process:
    threads = tuple(Thread(tid=tid) for tid in tids or (pid,))
    return Process(pid=pid, comm=f"p{pid}", threads=threads, thread_count=len(threads) if count is None else count)


def lock(pid: int, waiter: int, owner: int | None = None, *, at: str = "0x1", steady: bool = True, **known) -> Lock:
    return Lock(
        **{
            "pid": pid,
            "address": at,
            "kind": "pthread_mutex",
            "owner_tid": owner,
            "owner_confidence": Level.HIGH,
            "waiters": (Waiter(tid=waiter, operation="futex wait", endless=True, steady=steady),),
            **known,
        }
    )


def pipe(pid: int, waiter: int, *releasers: int, **known) -> Lock:
    return lock(pid, waiter, at="", kind="pipe", object=f"pipe:[{pid}]", releaser_pids=releasers, **known)


def cycles(*locks: Lock, processes: tuple[Process, ...] = (), **known) -> list[list[tuple[int, int]]]:
    snapshot = Snapshot(locks=locks, processes=processes, **known)
    return [[wait.party for wait in cycle] for cycle in deadlocks(waits_of(snapshot))]


CROSSED = (lock(1, 10, 11, at="0xa"), lock(1, 11, 10, at="0xb"))


def test_two_threads_crossed() -> None:
    assert cycles(*CROSSED) == [[(1, 10), (1, 11)]]


def test_each_cycle_once_and_who_is_behind() -> None:
    locks = (*CROSSED, lock(1, 12, 11, at="0xa"), lock(1, 13, 12, at="0xc"), lock(2, 20, 20, at="0xd"))
    waits = waits_of(Snapshot(locks=locks))
    found = deadlocks(waits)
    assert [[wait.party for wait in cycle] for cycle in found] == [[(1, 10), (1, 11)], [(2, 20)]]
    assert behind(waits, found[0]) == ((1, 12), (1, 13))
    assert end_of_chain(waits, (1, 13)) == ((1, 13), (1, 12), (1, 11), (1, 10))


@pytest.mark.parametrize(
    "locks",
    [
        (lock(1, 10, 11, at="0xa"), lock(1, 11, 12, at="0xb")),
        (CROSSED[0], lock(1, 11, 10, at="0xb", steady=False)),
        (CROSSED[0], lock(1, 11, 10, at="0xb", owner_confidence=Level.LOW)),
        (CROSSED[0], lock(1, 11, 10, at="0xb", waiters=(Waiter(tid=11, steady=True),))),
        (CROSSED[0], lock(2, 11, 10, at="0xb")),
    ],
    ids=["chain", "not steady", "owner not sure", "timeout", "another process"],
)
def test_no_cycle(locks: tuple[Lock, ...]) -> None:
    assert cycles(*locks) == []


def test_two_processes_that_wait_for_each_others_bytes() -> None:
    locks = (pipe(1, 1, 2), pipe(2, 2, 1))
    both = (process(1), process(2))
    assert cycles(*locks, processes=both) == [[(1, 1), (2, 2)]]
    # A second thread could write; a process whose threads are not all known, too; and somebody else with the pipe open.
    assert cycles(*locks, processes=(process(1), process(2, 2, 3))) == []
    assert cycles(*locks, processes=(process(1), process(2, count=2))) == []
    assert cycles(*locks, processes=(process(1),)) == []
    assert cycles(pipe(1, 1, 2, 3), locks[1], processes=(*both, process(3))) == []
    # Who may write to himself may wait for a signal.
    assert cycles(pipe(1, 1, 1, 2), locks[1], processes=both) == []


def test_every_thread_of_a_process_in_the_cycle() -> None:
    locks = (pipe(1, 1, 2), pipe(2, 2, 1), lock(2, 3, 2))
    assert cycles(*locks, processes=(process(1), process(2, 2, 3))) == [[(1, 1), (2, 2)]]


def test_what_python_stacks_say_of_the_interpreter_lock_is_of_another_moment() -> None:
    threads = (PythonThread(pid=1, tid=10, owns_gil=True), PythonThread(pid=1, tid=11, waits_for_gil=True))
    assert cycles(lock(1, 10, 11), python_threads=threads) == []
    assert cycles(lock(1, 10, 11), lock(1, 11, 10, at="0x9", kind="gil"), python_threads=threads) == [
        [(1, 10), (1, 11)]
    ]


def task(address: str, wants: str = "", *holds: str, **known) -> AsyncioTask:
    return AsyncioTask(
        pid=1, address=address, name=address, state="waiting", waits_for_lock=wants, holds_locks=holds, **known
    )


def test_tasks() -> None:
    first, second = task("0xa00000", "0x1", "0x2"), task("0xb00000", "0x2", "0x1")
    both = [[(1, 0xA00000), (1, 0xB00000)]]
    assert cycles(asyncio_tasks=(first, second)) == both
    timed = task("0xb00000", "0x2", "0x1", waits_with_timeout=True)
    assert cycles(asyncio_tasks=(first, timed)) == []
    assert cycles(asyncio_tasks=(first, task("0xb00000", "0x2", "0x1", doubt="it ended"))) == []
    assert cycles(asyncio_tasks=(first, task("0xb00000", "0x2", "0x1", same_at_second_look=False))) == []
    # Two that seem to have one lock: nobody can be named.
    assert cycles(asyncio_tasks=(first, second, task("0xc00000", "", "0x1"))) == []
    child = task("0xb00000", "0x2")
    parent = task("0xa00000", "", "0x2", waits_for=(TaskEdge(address="0xb00000", kind="await"),))
    assert cycles(asyncio_tasks=(parent, child)) == both


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=12))
def test_what_is_left_has_nobody_outside(edges: list[tuple[int, int]]) -> None:
    locks = tuple(lock(1, waiter, owner, at=f"{i:#x}") for i, (waiter, owner) in enumerate(dict(edges).items()))
    waits = waits_of(Snapshot(locks=locks))
    inside = {wait.party for cycle in deadlocks(waits) for wait in cycle}
    owners = dict(edges)
    for _, tid in inside:
        # Followed on, every one of them comes back to itself.
        at, seen = owners[tid], 0
        while at != tid:
            at, seen = owners[at], seen + 1
            assert seen <= 9


def test_the_verdict_spells_the_cycle_out() -> None:
    snapshot = conclude(Snapshot(meta=Meta(host="h"), locks=CROSSED, processes=(process(1, 1, 10, 11),)))
    verdict = snapshot.verdict
    assert (verdict.code, verdict.confidence, verdict.holder_pids) == (Verdict.Code.DEADLOCK, Level.HIGH, (1,))
    assert verdict.hop == ""
    assert verdict.summary == "Deadlock: 2 threads of p1 (pid 1) wait for each other, and nobody else can let them go."
    assert [(each.text, each.ref) for each in verdict.evidence] == [
        (
            (
                "thread 10 of p1 (pid 1) waits for the mutex 0xa ▸ "
                "thread 11 of p1 (pid 1) waits for the mutex 0xb ▸ thread 10"
            ),
            "locks[0] locks[1]",
        ),
        ("thread 10 waits for the mutex 0xa, which only thread 11 can give", "locks[0]"),
        ("thread 11 waits for the mutex 0xb, which only thread 10 can give", "locks[1]"),
    ]


def test_a_cycle_known_by_a_stack_is_less_sure() -> None:
    locks = (CROSSED[0], lock(1, 11, 10, at="0xb", kind="rust_mutex", owner_confidence=Level.MEDIUM))
    verdict = conclude(Snapshot(meta=Meta(host="h"), locks=locks, processes=(process(1, 1, 10, 11),))).verdict
    assert verdict.confidence is Level.MEDIUM
    assert verdict.evidence[2].text.endswith("can give, by the lock's address on its stack")


def test_requests_behind_a_deadlock_of_the_router() -> None:
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 30, age_ms=41_000)
    scene.idle(router, engine, 3)
    locks = (lock(router, router, router + 1), lock(router, router + 1, router, at="0xb"))
    verdict = conclude(replace(scene.snapshot(), locks=locks)).verdict
    assert (verdict.code, verdict.hop, verdict.holder_pids) == (Verdict.Code.DEADLOCK, "router", (router,))
    assert verdict.explains == 30
    assert verdict.summary.endswith("and nobody else can let them go; 30 requests wait behind them.")
