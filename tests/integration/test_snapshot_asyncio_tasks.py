"""asyncio tasks read from outside, against what each target tells of itself, on every Python at hand."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from freezeframe.agentd.collectors.snapshot_asyncio_tasks import SNAPSHOT_ASYNCIO_TASKS
from freezeframe.agentd.host import Host, procfs
from freezeframe.judge.model import AsyncioTask, Process
from tests.support.children import PROGRAMS, child, python
from tests.support.pythons import Python, each_python
from tests.support.report import run, target, until
from tests.support.reports import KeptReport

pytestmark = pytest.mark.needs("root")

Truth = dict[str, list[list[object]]]


@contextlib.contextmanager
def known_tasks(
    which: Python, folder: Path, *arguments: str, count: int = 60, churn: int = 0, under: tuple[str, ...] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], Truth]]:
    truth = folder / "truth.json"
    program = str(PROGRAMS / "asyncio_tasks.py")
    with child(*under, which.path, program, str(count), str(churn), str(truth), *arguments) as process:
        yield process, json.loads(truth.read_text())


def look(pid: int, version: str, *, window_ms: float = 0.0) -> KeptReport:
    targets = [target(pid, role=Process.Role.ENGINE_HTTP, python=version)]
    return run(SNAPSHOT_ASYNCIO_TASKS, targets, window_ms=window_ms)


def tasks(kept: KeptReport) -> dict[str, AsyncioTask]:
    assert kept.misses == {}
    return {task.name: task for task in kept.snapshot().asyncio_tasks}


def chain(task: AsyncioTask) -> list[list[object]]:
    # From 3.11 on the code object has the qualified name.
    return [[frame.function.rpartition(".")[2], frame.line] for frame in task.frames]


def chain_names(task: AsyncioTask) -> list[str]:
    return [frame.function for frame in task.frames]


def differing(found: dict[str, AsyncioTask], truth: Truth) -> dict[str, object]:
    return {
        name: (expected, found.get(name))
        for name, expected in truth.items()
        if name not in found or found[name].doubt or chain(found[name]) != expected
    }


@each_python()
@pytest.mark.parametrize("churn", [0, 4000], ids=["still", "churning"])
def test_every_task_is_as_the_target_tells(python: Python, churn: int, tmp_path: Path) -> None:
    with known_tasks(python, tmp_path, count=3000, churn=churn) as (process, truth):
        assert len(truth) > 3000
        kept = look(process.pid, python.minor)
        found = tasks(kept)
        assert differing(found, truth) == {}
        assert kept.finished == [process.pid]
        # What is there beyond it are the tasks of the churn; each is either doubted or one that can be.
        for name in set(found) - set(truth) - {"main", "churn"}:
            task = found[name]
            if not task.doubt:
                assert chain_names(task) in ([], ["short"], ["short", "sleep"], ["short", "sleep", "__sleep0"])


@each_python()
def test_state_and_what_is_awaited(python: Python, tmp_path: Path) -> None:
    with known_tasks(python, tmp_path, count=8) as (process, _):
        found = tasks(look(process.pid, python.minor))
        # One that has ended is there as long as the program keeps it; 3.14 does not list it any more.
        ended = [found.pop(name).state for name in ("main", "ended") if name in found]
        assert set(ended) <= {"finished"}
        assert {task.state for task in found.values()} == {"waiting"}
        assert (found["request-0"].awaits, found["request-0"].awaits_state) == ("Future", "pending")
        assert (found["awaiter"].awaits, found["awaiter"].awaits_address) == ("Task", found["awaited"].address)
        assert found["gatherer"].awaits == "_GatheringFuture"
        assert all(task.loop == found["awaiter"].loop != "" for task in found.values())


@each_python()
def test_two_looks(python: Python, tmp_path: Path) -> None:
    with known_tasks(python, tmp_path, count=8, churn=200) as (process, truth):
        kept = look(process.pid, python.minor, window_ms=300.0)
        found = tasks(kept)
        assert differing(found, truth) == {}
        assert {found[name].same_at_second_look for name in truth} == {True}
        assert all(found[name].frames_after == () for name in truth)
        assert kept.parts == 2


@each_python()
def test_several_loops_in_several_threads(python: Python, tmp_path: Path) -> None:
    with known_tasks(python, tmp_path, "threads", count=8) as (process, truth):
        found = tasks(look(process.pid, python.minor))
        assert differing(found, truth) == {}
        assert len({task.loop for task in found.values()}) == 3
        assert found["loop-0-awaiter"].loop == found["loop-0-awaited"].loop != found["loop-1-awaiter"].loop


@each_python()
def test_a_stopped_target_is_looked_at_and_stays_as_it_is(python: Python, tmp_path: Path) -> None:
    with known_tasks(python, tmp_path, count=8) as (process, truth):
        process.send_signal(signal.SIGSTOP)
        directory = Host().proc(process.pid)
        until(lambda: procfs.stat(directory).state == "T")
        assert differing(tasks(look(process.pid, python.minor)), truth) == {}
        assert (procfs.stat(directory).state, procfs.status(directory).tracer_pid) == ("T", 0)


@each_python()
def test_a_target_in_namespaces_of_its_own(python: Python, tmp_path: Path) -> None:
    under = ("unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child")
    with known_tasks(python, tmp_path, count=8, under=under) as (process, truth):
        (pid,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        assert differing(tasks(look(pid, python.minor)), truth) == {}


def test_those_without_tasks() -> None:
    with (
        python("import time; print('ready', flush=True); time.sleep(600)") as plain,
        child("sleep", "600", ready=False) as other,
    ):
        targets = [
            target(plain.pid, role=Process.Role.CLIENT, python="3.11"),
            target(other.pid, role=Process.Role.CLIENT),
            target(other.pid + 100_000, role=Process.Role.CLIENT),
        ]
        kept = run(SNAPSHOT_ASYNCIO_TASKS, targets)
        assert kept.misses == {}
        assert sorted(kept.finished) == sorted(each.pid for each in targets)
        assert kept.snapshot().asyncio_tasks == ()


def test_memory_that_was_stuck_is_left_alone() -> None:
    kept = run(
        SNAPSHOT_ASYNCIO_TASKS, [target(os.getpid(), role=Process.Role.CLIENT, python="3.11", memory_blocked=True)]
    )
    assert kept.misses == {os.getpid(): "its memory was stuck before: left alone"}
    assert kept.parts == 0
