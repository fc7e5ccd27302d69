from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator

import pytest

from freezeframe.agentd.collectors.snapshot_locks import SNAPSHOT_LOCKS
from freezeframe.agentd.host import holders
from freezeframe.judge.model import Confidence, Lock, Verdict
from tests.support import report
from tests.support.children import PROGRAMS, child
from tests.support.compiled import c_program, rust_program
from tests.support.judged import deadlocks_of
from tests.support.pythons import Python, each_python

pytestmark = pytest.mark.needs("bpf", "gcc")

Level = Confidence.Level
# Where a process of another owner hides its descriptors, a pipe's holders are not known for sure.
HIDDEN = os.geteuid() == 0 and bool(holders.find("/proc", {"pipe:[0]"}).unseen)


@contextlib.contextmanager
def scene(*command: str) -> Iterator[list[int]]:
    """A program that prints "ready PID..." when all of its processes wait; gives their pids."""
    with child(*command, ready=False) as process:
        line = process.stdout.readline().split()
        assert line[:1] == [b"ready"]
        pids = [int(number) for number in line[1:]] or [process.pid]
        yield pids


def judged(*command: str, tries: int = 20, stands: Callable[[list[Verdict], tuple[Lock, ...]], bool] | None = None):
    """The deadlock of a scene: looked for again until it stands, as a process says that it is ready just before."""
    with scene(*command) as pids:
        for _ in range(tries):
            found, locks, kept = deadlocks_of(*pids)
            assert not kept.misses
            if stands(found, locks) if stands else found:
                break
        return found, locks, pids


def test_two_looks_prove_it_over_the_window() -> None:
    with scene(c_program("locks"), "ring") as [pid]:
        report.until(lambda: len(deadlocks_of(pid)[0]) == 1)
        kept = report.run(SNAPSHOT_LOCKS, [report.target(pid)], window_ms=200.0)
    waiters = [waiter for lock in kept.gathered.records("locks") for waiter in lock.waiters]
    assert len(waiters) == 3
    assert all(waiter.steady and waiter.since_ms >= 200.0 for waiter in waiters)
    assert kept.finished == [pid]


def steady_kinds(locks: tuple[Lock, ...]) -> set[str]:
    """Kinds of the waits that stay; the line that a program says is written through a pipe, too."""
    return {lock.kind for lock in locks if any(waiter.steady for waiter in lock.waiters)}


DEADLOCKS = {
    # scene: threads of the cycle, processes, confidence, kinds.
    "mutex": (2, 1, Level.HIGH, {"pthread_mutex"}),
    "mutex-robust": (2, 1, Level.HIGH, {"pthread_mutex"}),
    "ring": (3, 1, Level.HIGH, {"pthread_mutex"}),
    "relock": (1, 1, Level.HIGH, {"pthread_mutex"}),
    "rwlock": (2, 1, Level.HIGH, {"rwlock"}),
    "pipes": (2, 2, Level.HIGH, {"pipe"}),
    "sockets": (2, 2, Level.HIGH, {"socket"}),
    "child-output": (2, 2, Level.MEDIUM, {"child", "pipe"}),
    "posix": (2, 2, Level.HIGH, {"pipe", "posix"}),
}


@pytest.mark.parametrize("name", DEADLOCKS)
def test_a_cycle_is_named(name: str) -> None:
    threads, processes, confidence, kinds = DEADLOCKS[name]
    found, locks, pids = judged(c_program("locks"), name)
    if HIDDEN and kinds & {"pipe", "socket"}:
        confidence = Level.MEDIUM
    [verdict] = found
    assert verdict.confidence is confidence
    assert sorted(verdict.holder_pids) == sorted(pids[:processes])
    cycle = verdict.evidence[0].text
    assert cycle.count("▸") == threads
    assert steady_kinds(locks) == kinds
    tids = re.findall(r"thread (\d+)", cycle)
    assert tids[0] == tids[-1]
    assert len(set(tids)) == threads


@pytest.mark.needs("rustc")
@pytest.mark.parametrize(("name", "threads"), [("mutex", 2), ("ring", 3), ("rwlock", 2)])
def test_a_cycle_of_rust_is_named_with_less_confidence(name: str, threads: int) -> None:
    [verdict], _, _ = judged(rust_program("locks"), name)
    assert verdict.confidence is Level.MEDIUM
    assert verdict.evidence[0].text.count("▸") == threads
    assert "by the lock's address on its stack" in verdict.evidence[1].text


@each_python()
def test_the_interpreter_lock_against_a_c_mutex(python: Python) -> None:
    [verdict], locks, _ = judged(python.path, "-W", "ignore", str(PROGRAMS / "gil_and_mutex.py"), "deadlock")
    assert verdict.confidence is Level.HIGH
    assert steady_kinds(locks) == {"gil", "pthread_mutex"}
    assert "waits for the interpreter lock" in verdict.evidence[0].text


def test_owners_in_a_pid_namespace_are_the_hosts_threads() -> None:
    # Inside, the threads are numbered from 2 on, and the mutexes name their owners so.
    with child("unshare", "--pid", "--fork", "--kill-child", c_program("locks"), "ring", ready=False) as process:
        assert process.stdout.readline().split() == [b"ready", b"1"]
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            [pid] = [int(number) for number in file.read().split()]
        for _ in range(20):
            found, locks, _ = deadlocks_of(pid)
            if found:
                break
    assert {lock.owner_tid for lock in locks if lock.kind == "pthread_mutex"} == {
        waiter.tid for lock in locks for waiter in lock.waiters if lock.kind == "pthread_mutex"
    }
    assert found[0].evidence[0].text.count("▸") == 3


LOOKALIKES = [
    ("c", name)
    for name in (
        "chain",
        "timed",
        "owner-spins",
        "owner-ended",
        "owner-reads",
        "conditions",
        "semaphores",
        "own-pipes",
        "recursive",
        "trylock",
        "rwlock-writer",
        "child-sleeps",
        "flock",
        "pipes-third",
        "pipes-helper",
        "sockets-timeout",
    )
]
LOOKALIKES += [("rust", name) for name in ("third", "main", "statics")]
LOOKALIKES += [("python", name) for name in ("sleeps", "locks", "busy")]


@pytest.mark.needs("rustc")
@pytest.mark.parametrize(("language", "name"), LOOKALIKES)
def test_no_cycle_is_named_where_there_is_none(language: str, name: str) -> None:
    commands = {
        "c": lambda: (c_program("locks"), name),
        "rust": lambda: (rust_program("locks"), name),
        "python": lambda: (sys.executable, str(PROGRAMS / "gil_and_mutex.py"), name),
    }
    found, _, _ = judged(*commands[language](), tries=3)
    assert found == []


OWNERS = {
    # scene: kind, and what its owner does.
    "chain": ("pthread_mutex", "clock_nanosleep"),
    "owner-reads": ("pthread_mutex", "read fd"),
    "recursive": ("pthread_mutex", "clock_nanosleep"),
    "rwlock-writer": ("rwlock", "clock_nanosleep"),
}


@pytest.mark.parametrize("name", OWNERS)
def test_the_owner_of_a_lock_and_what_it_does(name: str) -> None:
    kind, doing = OWNERS[name]

    def owned(locks: tuple[Lock, ...]) -> list[Lock]:
        return [lock for lock in locks if lock.kind == kind and lock.owner_doing.startswith(doing)]

    _, locks, _ = judged(c_program("locks"), name, stands=lambda _, locks: bool(owned(locks)))
    assert owned(locks)
    assert {lock.owner_confidence for lock in owned(locks)} == {Level.HIGH}


def test_other_waits_say_what_they_are_for() -> None:
    for name, kind in (
        ("conditions", "condvar"),
        ("semaphores", "semaphore"),
        ("flock", "flock"),
        ("own-pipes", "pipe"),
    ):
        _, locks, _ = judged(c_program("locks"), name, stands=lambda _, locks: bool(steady_kinds(locks)))
        assert steady_kinds(locks) == {kind}
    _, locks, [parent, waiter] = judged(c_program("locks"), "flock", stands=lambda _, locks: bool(steady_kinds(locks)))
    [lock] = [lock for lock in locks if lock.kind == "flock"]
    assert (lock.pid, lock.owner_pid, lock.owner_confidence) == (waiter, parent, Level.MEDIUM)


def test_a_chain_that_ends_at_a_stopped_process() -> None:
    def stands(_: object, locks: tuple[Lock, ...]) -> bool:
        return any(lock.owner_doing == "stopped" for lock in locks) and {"pthread_mutex", "pipe"} <= steady_kinds(locks)

    found, locks, [parent, reader] = judged(c_program("locks"), "stopped-reader", stands=stands)
    assert found == []
    by_kind = {lock.kind: lock for lock in locks if lock.kind in {"pipe", "pthread_mutex"} and lock.pid == parent}
    pipe, mutex = by_kind["pipe"], by_kind["pthread_mutex"]
    assert (pipe.owner_pid, pipe.releaser_pids, pipe.owner_doing) == (reader, (reader,), "stopped")
    assert pipe.waiters[0].operation == "write"
    assert mutex.owner_tid == pipe.waiters[0].tid
    assert mutex.owner_doing.startswith("write fd ")


def test_a_lock_whose_owner_has_ended() -> None:
    _, locks, _ = judged(
        c_program("locks"), "owner-ended", stands=lambda _, locks: any(lock.owner_doing for lock in locks)
    )
    [lock] = [lock for lock in locks if lock.kind == "pthread_mutex"]
    assert lock.owner_tid is None
    assert re.fullmatch(r"thread \d+ has it and has ended", lock.owner_doing)
