"""py-spy on real Python processes: exact frames, odd targets, and what is never used."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

from freezeframe.agentd.collectors.snapshot_python_stacks import SNAPSHOT_PYTHON_STACKS
from freezeframe.agentd.host import Host, procfs, py_spy
from freezeframe.agentd.jobs import Target
from freezeframe.judge.model import Process, PythonThread
from tests.support.children import PROGRAMS, child, program, python
from tests.support.report import run, target, until
from tests.support.reports import KeptReport

pytestmark = pytest.mark.needs("root")

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"
SOURCE = (PROGRAMS / "python_stacks.py").read_text().splitlines()


def line_of(name: str) -> int:
    return next(number for number, line in enumerate(SOURCE, 1) if line.endswith(f"# line of {name}"))


def look(*pids: int, window_ms: float = 0.0, **known: object) -> KeptReport:
    targets = [target(pid, role=Process.Role.CLIENT, python=VERSION, **known) for pid in pids]
    return run(SNAPSHOT_PYTHON_STACKS, targets, window_ms=window_ms)


def stacks(kept: KeptReport) -> dict[str, PythonThread]:
    return {thread.name: thread for thread in kept.snapshot().python_threads}


def state(pid: int) -> tuple[str, int]:
    directory = Host().proc(pid)
    return procfs.stat(directory).state, procfs.status(directory).tracer_pid


def settled(pid: int) -> None:
    """Wait until the threads of python_stacks.py are where they stay: "ready" comes before the last calls."""
    directory = Host().proc(pid)

    def calls() -> set[str]:
        threads = [f"{directory}/task/{tid}" for tid in procfs.tids(directory)]
        return {procfs.syscall(each, os.uname().machine).name for each in threads}

    # What time.sleep calls depends on the version of Python.
    until(lambda: "futex" in calls() and calls() & {"clock_nanosleep", "pselect6", "select"})


def assert_known_stacks(kept: KeptReport, pid: int) -> None:
    threads = stacks(kept)
    assert set(threads) == {"MainThread", "helper-thread"}
    main, helper = threads["MainThread"], threads["helper-thread"]
    assert main.tid == pid
    assert helper.tid in procfs.tids(Host().proc(pid))
    # From 3.11 on the code object has the qualified name.
    assert [each.function.rpartition(".")[2] for each in main.frames[:2]] == ["wait", "wait"]
    assert [(each.function, each.line) for each in main.frames[2:]] == [
        ("inner", line_of("inner")),
        ("outer", line_of("outer")),
        ("<module>", len(SOURCE)),
    ]
    assert [os.path.basename(each.file) for each in main.frames[2:]] == ["python_stacks.py"] * 3
    assert (helper.frames[0].function, helper.frames[0].line) == ("rest", line_of("rest"))
    assert not main.active


def test_every_thread_with_function_file_and_line_innermost_first() -> None:
    with program("python_stacks.py") as process:
        settled(process.pid)
        kept = look(process.pid)
        assert_known_stacks(kept, process.pid)
        assert kept.finished == [process.pid]
        assert all(thread.same_at_second_look is None for thread in stacks(kept).values())


def test_two_looks_tell_a_thread_that_waits_from_one_that_runs() -> None:
    with program("python_stacks.py", "spin") as process:
        settled(process.pid)
        kept = look(process.pid, window_ms=300.0)
        threads = stacks(kept)
        assert threads["MainThread"].same_at_second_look is True
        assert threads["MainThread"].frames_after == ()
        assert threads["spinning"].active
        assert threads["spinning"].cpu_ms_delta > 0
        assert threads["helper-thread"].cpu_ms_delta == 0
        # Our own walker's first, as it is there first.
        assert kept.parts == 3


def test_a_stopped_target_is_looked_at_and_stays_as_it_is() -> None:
    with program("python_stacks.py") as process:
        settled(process.pid)
        process.send_signal(signal.SIGSTOP)
        until(lambda: state(process.pid)[0] == "T")
        assert_known_stacks(look(process.pid), process.pid)
        assert state(process.pid) == ("T", 0)


def test_a_target_in_namespaces_of_its_own_has_the_hosts_thread_ids() -> None:
    command = ("unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child", sys.executable)
    with child(*command, str(PROGRAMS / "python_stacks.py")) as process:
        (pid,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        assert procfs.status(Host().proc(pid)).namespace_pids == (pid, 1)
        settled(pid)
        assert_known_stacks(look(pid), pid)


def test_several_targets_and_some_that_are_none() -> None:
    with (
        program("python_stacks.py") as one,
        program("python_stacks.py") as two,
        child("sleep", "600", ready=False) as no,
    ):
        gone = no.pid + 100_000
        targets = [
            target(one.pid, role=Process.Role.CLIENT, python=VERSION),
            target(no.pid, role=Process.Role.WORKER),
            target(gone, role=Process.Role.CLIENT, python=VERSION),
            target(two.pid, role=Process.Role.CLIENT, python=VERSION),
            Target(pid=os.getpid(), start_ticks=1, role=Process.Role.CLIENT, python=VERSION),
        ]
        kept = run(SNAPSHOT_PYTHON_STACKS, targets)
        assert {thread.pid for thread in kept.snapshot().python_threads} == {one.pid, two.pid}
        assert sorted(kept.finished) == sorted([one.pid, two.pid, no.pid, gone])
        assert kept.misses == {os.getpid(): "the process ended and another one has its pid now"}


def test_a_zombie_and_a_leader_that_has_ended_are_named() -> None:
    zombie = "import os,time\npid = os.fork()\nif pid == 0: os._exit(0)\nprint(pid, flush=True)\ntime.sleep(600)"
    leader = (
        "import ctypes,threading,time\nthreading.Thread(target=time.sleep, args=(600,)).start()\n"
        "print('ready', flush=True)\nctypes.CDLL(None).syscall(60, 0)"
    )
    with child(sys.executable, "-c", zombie, ready=False) as parent, python(leader) as headless:
        dead = int(parent.stdout.readline())
        until(lambda: state(dead)[0] == "Z" and state(headless.pid)[0] == "Z")
        kept = look(dead, headless.pid)
        assert set(kept.misses) == {dead, headless.pid}
        assert kept.misses[headless.pid] == "it has ended, or only its main thread has"


def test_memory_that_was_stuck_is_left_alone() -> None:
    with program("python_stacks.py") as process:
        settled(process.pid)
        kept = look(process.pid, memory_blocked=True)
        assert kept.misses == {process.pid: "its memory was stuck before: left alone"}
        assert kept.parts == 0


def test_a_py_spy_on_path_is_never_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = tmp_path / "used"
    fake = tmp_path / "py-spy"
    fake.write_text(f"#!/bin/sh\ntouch {marker}\necho '[]'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with program("python_stacks.py") as process:
        settled(process.pid)
        assert_known_stacks(look(process.pid), process.pid)
    assert not marker.exists()


def test_without_py_spy_or_with_an_old_one_our_own_walker_reads_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    def alone() -> tuple[str, str]:
        kept = look(process.pid)
        assert {thread.source for thread in kept.snapshot().python_threads} == {"walker"}
        assert_known_stacks(kept, process.pid)
        (told,) = kept.partials
        return told

    with program("python_stacks.py") as process:
        settled(process.pid)
        monkeypatch.setattr(metadata, "distribution", absent)
        ours = "stacks are our own walker's alone"
        install = "pip install 'freezeframe[agent]'"
        assert alone() == (f"py-spy is not installed in the agent's environment: {ours}", install)
        info = tmp_path / "py_spy-0.3.14.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: py-spy\nVersion: 0.3.14\n")
        monkeypatch.setattr(metadata, "distribution", lambda _name: metadata.PathDistribution(info))
        assert alone() == (f"py-spy 0.3.14 is too old: 0.4.1 is needed: {ours}", install)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: py-spy\nVersion: 0.4.3\n")
        assert alone() == (f"py-spy 0.4.3 is installed without its program: {ours}", install)


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_one_that_hangs_costs_its_limit_and_holds_up_no_other(tmp_path: Path) -> None:
    hanging = script(tmp_path / "spy", '#!/bin/sh\n[ "$5" = 7 ] && exec sleep 600\nprintf "[%s]" "$5"\n')
    told: list[list[int]] = []
    begin = time.monotonic()
    answers = list(py_spy.dump_all(hanging, [7, 8, 9], limit_s=1.0, at_once=2, working_on=lambda p: told.append([*p])))
    assert time.monotonic() - begin < 15
    assert {(each.pid, each.stdout, each.failure) for each in answers} == {
        (8, b"[8]", ""),
        (9, b"[9]", ""),
        (7, b"", "no answer within 1.0 s"),
    }
    assert told[0] == [7, 8]
    assert max(map(len, told)) == 2


def test_one_that_cannot_be_started(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none"), script(tmp_path / "bad", "no program")):
        (answer,) = py_spy.dump_all(path, [7], limit_s=5.0, at_once=1, working_on=lambda _pids: None)
        assert py_spy.why_failed(answer) == "py-spy: its program could not be started"


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b'[{"frames": 1}]', b"[" * 100_000, b"\xff"])
def test_an_answer_that_is_none_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="reading py-spy's answer"):
        py_spy.parse(data, pid=1, frames=10, host_tids=lambda tid: tid)
