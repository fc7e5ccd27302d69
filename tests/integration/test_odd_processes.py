"""Real processes in the states that a lock-up brings, through the collectors of processes and command lines."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from freezeframe.agentd.collectors.contract import Collector
from freezeframe.agentd.collectors.find_processes import FIND_PROCESSES
from freezeframe.agentd.collectors.read_command_lines import READ_COMMAND_LINES
from freezeframe.agentd.collectors.snapshot_processes import SNAPSHOT_PROCESSES
from freezeframe.agentd.host import Host, procfs
from freezeframe.judge.model import Process
from tests.support.children import child, program, python
from tests.support.report import run, target, until
from tests.support.reports import KeptReport

pytestmark = pytest.mark.needs("root")


def look(pid: int, collector: Collector = SNAPSHOT_PROCESSES, **options: object) -> tuple[Process, KeptReport]:
    kept = run(collector, [target(pid)], **options)
    return next(iter(kept.snapshot().processes), Process()), kept


def state(pid: int) -> str:
    return procfs.stat(Host().proc(pid)).state


def states(pid: int) -> list[str]:
    return [procfs.stat(Host().proc(pid, "task", tid)).state for tid in procfs.tids(Host().proc(pid))]


def test_a_stopped_process_is_seen_and_left_stopped() -> None:
    with python("import time; print('ready', flush=True); time.sleep(600)") as one:
        one.send_signal(signal.SIGSTOP)
        until(lambda: state(one.pid) == "T")
        process, kept = look(one.pid, window_ms=20.0)
        assert (process.state, process.threads[0].state, process.threads[0].state_after) == ("T", "T", "T")
        assert kept.misses == {}
        assert state(one.pid) == "T"


def test_the_call_of_a_sleeping_thread_by_name_with_its_kernel_stack() -> None:
    with child("sleep", "600", ready=False) as one:
        until(lambda: state(one.pid) == "S" and procfs.stat(Host().proc(one.pid)).comm == "sleep")
        process, kept = look(one.pid)
        (thread,) = process.threads
        assert (thread.tid, thread.name, thread.syscall) == (one.pid, "sleep", "clock_nanosleep")
        assert len(thread.syscall_arguments) == 6
        assert any("nanosleep" in function for function in thread.kernel_stack)
        assert (process.parent_pid, process.exe, process.python) == (os.getpid(), os.path.realpath("/bin/sleep"), "")
        assert process.fd_count == 3
        assert kept.partials == []


def test_a_busy_thread_moves_between_the_looks() -> None:
    with python("print('ready', flush=True)\nwhile True: pass") as one:
        process, _ = look(one.pid, window_ms=300.0)
        assert process.cpu_ms_delta > 0
        assert process.threads[0].cpu_ms_delta > 0
        assert (process.python, process.runtime) == (f"{sys.version_info[0]}.{sys.version_info[1]}", "python")


def test_a_vfork_parent_waits_uninterruptibly_and_its_command_line_is_read() -> None:
    with program("odd_process.py", "vfork_parent") as one:
        until(lambda: state(one.pid) == "D")
        process, kept = look(one.pid)
        assert (process.state, process.threads[0].syscall) == ("D", "vfork")
        assert kept.misses == {}
        lines, kept = look(one.pid, READ_COMMAND_LINES)
        assert lines.argv[2] == "vfork_parent" or lines.argv[-1] == "…"
        assert kept.misses == {}
        for kid in Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split():
            os.kill(int(kid), signal.SIGKILL)


def test_a_traced_process_names_its_tracer() -> None:
    with python("import time; print('ready', flush=True); time.sleep(600)") as one:
        with program("odd_process.py", "tracer", str(one.pid)) as tracer:
            process, _ = look(one.pid)
            assert process.tracer_pid == tracer.pid
        assert look(one.pid)[0].tracer_pid == 0


def test_a_zombie() -> None:
    with child(
        sys.executable, str(Path(__file__).parents[1] / "programs/odd_process.py"), "zombie", ready=False
    ) as one:
        pid = int(one.stdout.readline())
        until(lambda: state(pid) == "Z")
        process, kept = look(pid)
        assert (process.state, process.exe, process.parent_pid, process.exited) == ("Z", "", one.pid, False)
        assert [thread.state for thread in process.threads] == ["Z"]
        assert (kept.misses, kept.partials) == ({}, [])
        assert look(pid, READ_COMMAND_LINES)[0] == Process(pid=pid, start_ticks=process.start_ticks)


def test_a_leader_that_has_ended_still_has_its_threads() -> None:
    with program("odd_process.py", "zombie_leader") as one:
        until(lambda: states(one.pid) == ["Z", "S"])
        process, kept = look(one.pid)
        assert [thread.state for thread in process.threads] == ["Z", "S"]
        assert process.threads[1].syscall == "clock_nanosleep"
        assert kept.misses == {}


def test_a_thread_of_the_kernel_and_a_pid_that_is_gone() -> None:
    _, kept = look(2)
    assert kept.misses == {2: "a thread of the kernel, not a process"}
    with child("true", ready=False) as one:
        gone = target(one.pid)
        one.wait(20)
    kept = run(SNAPSHOT_PROCESSES, [gone])
    assert kept.snapshot().processes == (Process(pid=gone.pid, start_ticks=gone.start_ticks, exited=True),)


def test_a_process_in_namespaces_of_its_own() -> None:
    code = "import time; print('ready', flush=True); time.sleep(600)"
    command = ("unshare", "--pid", "--mount", "--net", "--fork", "--mount-proc", "--kill-child", sys.executable)
    with child(*command, "-c", code) as one:
        (pid,) = map(int, Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split())
        process, _ = look(pid)
        assert (process.container_pid, process.pid, process.threads[0].tid) == (1, pid, pid)
        assert process.netns == os.stat(f"/proc/{pid}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino
        assert process.exe == os.path.realpath(sys.executable)


REUSE = r"""
import os, signal, sys, time
def spawn_at(pid):
    for _ in range(50):
        with open('/proc/sys/kernel/ns_last_pid', 'w') as file: file.write(str(pid - 1))
        child = os.fork()
        if child == 0: signal.pause(); os._exit(0)
        if child == pid: return child
        os.kill(child, 9); os.waitpid(child, 0)
    raise SystemExit('could not get the pid')
sys.path[:0] = sys.argv[1:]
from freezeframe.agentd.collectors.snapshot_processes import SNAPSHOT_PROCESSES
from tests.support.report import run, target
first = spawn_at(5000)
known = target(first)
while True:
    os.kill(first, 9); os.waitpid(first, 0)
    first = spawn_at(5000)
    if target(first).start_ticks != known.start_ticks: break
kept = run(SNAPSHOT_PROCESSES, [known])
print(kept.misses, kept.snapshot().processes)
os.kill(first, 9)
"""


def test_the_same_pid_for_another_process() -> None:
    root = str(Path(__file__).parents[2])
    command = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable)
    with child(*command, "-c", REUSE, root, ready=False) as one:
        answer = one.stdout.read().decode()
    assert answer == "{5000: 'the process ended and another one has its pid now'} ()\n"


ESC = b"\x1b]0;pwned\x07\x1b[31m"
HOSTILE = (
    b"x) Z 1 1", b"a\nState:\tZ", b"\x1b[2Jclr", b"\xff\xfe\xc3(", b"", b"../../../etc", b"%s%n{0}$(id)`",
    "\u202eevil".encode(),
)  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_and_arguments(name: bytes, tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/dir\n" + ESC
    os.mkdir(folder)
    arguments = (b"--password=hunter2\x1b[7m\n", b"a" * 100_000, b"", ESC)
    with program("odd_process.py", "hostile", name.hex() or "", *arguments, cwd=folder) as one:
        until(lambda: states(one.pid) == ["S", "S"])
        process, kept = look(one.pid, window_ms=10.0)
        assert (process.state, process.parent_pid) == ("S", os.getpid())
        assert [thread.state for thread in process.threads] == ["S", "S"]
        assert [thread.name for thread in process.threads] == [process.comm] * 2
        assert process.comm.isprintable()
        found = next(each for each in run(FIND_PROCESSES).snapshot().processes if each.pid == one.pid)
        assert (found.comm, found.start_ticks) == (process.comm, process.start_ticks)
        lines, _ = look(one.pid, READ_COMMAND_LINES)
        assert lines.argv_source == "own"
        assert "--password=…" in lines.argv
        text = " ".join((lines.title, *lines.argv, *kept.doings))
        assert text.isprintable()
        assert "hunter2" not in text
        assert len(text) < 4000
