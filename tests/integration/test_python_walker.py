"""Threads of real Python processes by our own walker, with and without py-spy, on every Python at hand."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from freezeframe.agentd.collectors.snapshot_python_stacks import SNAPSHOT_PYTHON_STACKS
from freezeframe.agentd.host import procfs
from freezeframe.agentd.host.cpython.interpreter import Interpreter, attach
from freezeframe.agentd.host.cpython.stacks import WalkedThread, walk_threads
from freezeframe.agentd.host.target_memory import TargetMemory
from freezeframe.judge.model import Process, PythonThread
from tests.support.children import PROGRAMS, child
from tests.support.pythons import Python, each_python, pythons
from tests.support.report import run, target, until

pytestmark = [pytest.mark.needs("root"), pytest.mark.timeout(300)]

Truth = dict[str, list[list[object]]]
MACHINE = os.uname().machine


@contextlib.contextmanager
def known_threads(
    which: Python, folder: Path, *, parked: int = 0, busy: int = 0, hold: str = "-"
) -> Iterator[tuple[subprocess.Popen[bytes], Truth]]:
    truth = folder / "truth.json"
    program = str(PROGRAMS / "python_threads.py")
    with child(which.path, program, str(parked), str(busy), hold, str(truth)) as process:
        yield process, json.loads(truth.read_text())


def attached(pid: int) -> Interpreter:
    return attach(f"/proc/{pid}", TargetMemory(pid), MACHINE)


def walk(interpreter: Interpreter, pid: int) -> dict[str, WalkedThread]:
    threads = walk_threads(interpreter, f"/proc/{pid}", MACHINE, None, frames=200, threads=1000)
    return {thread.name: thread for thread in threads}


def look(pid: int, version: str, *, window_ms: float = 0.0) -> dict[str, PythonThread]:
    targets = [target(pid, role=Process.Role.CLIENT, python=version)]
    kept = run(SNAPSHOT_PYTHON_STACKS, targets, window_ms=window_ms, deadline_ms=120_000.0)
    assert kept.misses == {}
    return {thread.name: thread for thread in kept.snapshot().python_threads}


def calls(pid: int) -> list[str]:
    threads = [f"/proc/{pid}/task/{tid}" for tid in procfs.tids(f"/proc/{pid}")]
    return [procfs.syscall(each, MACHINE).name for each in threads]


@each_python()
def test_parked_threads_are_as_the_target_tells_and_both_readers_agree(python: Python, tmp_path: Path) -> None:
    with known_threads(python, tmp_path, parked=20) as (process, truth):
        assert len(truth) == 20
        until(lambda: calls(process.pid).count("futex") == 21)
        # py-spy checks the first of two looks.
        found = look(process.pid, python.minor, window_ms=1.0)
        assert set(found) == {*truth, "MainThread"}
        for name, frames in truth.items():
            thread = found[name]
            assert [[each.function.rpartition(".")[2], each.line] for each in thread.frames] == frames
            assert (thread.source, thread.doubt, thread.active, thread.owns_gil) == ("both", "", False, False)
            assert thread.same_at_second_look
            assert thread.frames[0].file == "threading.py"
        assert len({thread.tid for thread in found.values()}) == 21


@each_python()
def test_who_holds_the_interpreter_lock_and_who_waits_for_it(python: Python, tmp_path: Path) -> None:
    with known_threads(python, tmp_path, parked=2, busy=3, hold="gil") as (process, _):

        def held() -> dict[str, PythonThread]:
            found = look(process.pid, python.minor)
            waiting = {name for name, thread in found.items() if thread.waits_for_gil}
            # The main thread waits for its event, as the parked ones do, or still on its way there for the lock. Each
            # waits 5 ms at a time.
            return found if waiting - {"MainThread"} == {"busy-0", "busy-1", "busy-2"} else {}

        until(lambda: (found := held()) and found["holder"].owns_gil)
        found = look(process.pid, python.minor)
        assert [name for name, thread in found.items() if thread.owns_gil] == ["holder"]
        assert found["holder"].frames[0].function == "holds"
        assert found["holder"].doubt == ""


@each_python()
def test_a_stack_of_a_running_thread_is_one_it_had_or_doubted(python: Python, tmp_path: Path) -> None:
    # Innermost first: what f0's callees leave of the stack.
    full = ["f5", "f4", "f3", "f2", "f1", "f0", "busy"]
    possible = {tuple(full[depth:]) for depth in range(len(full))}
    sound = 0
    with known_threads(python, tmp_path, busy=5) as (process, _):
        interpreter = attached(process.pid)
        for _ in range(60):
            for name, thread in walk(interpreter, process.pid).items():
                names = [frame.place.function for frame in thread.frames]
                # Not those that have not left the barrier yet.
                if not name.startswith("busy") or thread.doubt or {"wait", "Barrier.wait"} & {*names}:
                    continue
                sound += 1
                assert tuple(names[: names.index("busy") + 1]) in possible, names
    assert sound


def test_a_target_that_only_one_reader_can_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = pythons()[0]
    with known_threads(python, tmp_path, parked=2) as (process, truth):
        until(lambda: calls(process.pid).count("futex") == 3)
        monkeypatch.setattr("freezeframe.agentd.host.cpython.interpreter.TABLES", {})
        spied = look(process.pid, python.minor)
        assert {spied[name].source for name in truth} == {"py-spy"}
        monkeypatch.undo()
        monkeypatch.setattr("freezeframe.agentd.host.py_spy.why_failed", lambda _answer: "py-spy: no answer")
        monkeypatch.setattr("freezeframe.agentd.host.py_spy.locate", lambda: "/bin/false")
        walked = look(process.pid, python.minor)
        assert {walked[name].source for name in truth} == {"walker"}
        assert {walked[name].doubt for name in truth} == {""}
