from __future__ import annotations

import os
from pathlib import Path

import pytest

from freezeframe.agentd.collectors.snapshot_processes import SNAPSHOT_PROCESSES
from freezeframe.agentd.host import Clock, Host, kernel_stacks, procfs
from freezeframe.agentd.jobs import Caps, Target
from freezeframe.judge.model import Process, Thread
from tests.support.proc_tree import KERNEL_THREAD, ProcTree
from tests.support.report import run
from tests.support.reports import KeptReport

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of calls of x86_64")


def look(root: Path, *pids: int, **options: object) -> KeptReport:
    options.setdefault("host", Host(root=root))
    return run(SNAPSHOT_PROCESSES, [Target(pid=pid, start_ticks=1000) for pid in pids], **options)


def after(root: Path, change: object) -> Host:
    return Host(root=root, clock=Clock(sleep=lambda _seconds: change()))


def test_a_process_in_full_at_one_look(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    directory = tree.add(7, tids=(7, 8))
    (directory / "fd" / "0").touch()
    kept = look(tmp_path, 7)
    (process,) = kept.snapshot().processes
    sleeping = Thread(
        name="sleep",
        state="S",
        syscall="clock_nanosleep",
        syscall_arguments=("0x0", "0x0", "0x7ffd", "0x0", "0x0", "0x0"),
        kernel_stack=("hrtimer_nanosleep+0x99/0x110", "do_syscall_64+0x3d/0x90"),
        cpu_ms=2000.0,
    )
    assert process.threads == tuple(
        Thread(**{name: getattr(sleeping, name) for name in sleeping.__dataclass_fields__} | {"tid": tid})
        for tid in (7, 8)
    )
    assert (process.fd_count, process.fd_limit, process.frozen, process.cpu_ms_delta) == (1, 1024.0, False, None)
    assert (kept.finished, kept.misses, kept.partials) == ([7], {}, [])


def test_the_second_look_brings_what_moved(tmp_path: Path) -> None:
    directory = ProcTree(tmp_path).add(7)

    def change() -> None:
        for folder in (directory, directory / "task" / "7"):
            for name, old, new in (
                ("stat", b") S", b") R"),
                ("stat", b" 150 50 ", b" 160 55 "),
                ("status", b"voluntary_ctxt_switches:\t7\nnon", b"voluntary_ctxt_switches:\t17\nnon"),
                ("status", b"nonvoluntary_ctxt_switches:\t3", b"nonvoluntary_ctxt_switches:\t4"),
            ):
                file = folder / name
                file.write_bytes(file.read_bytes().replace(old, new))
        (directory / "task" / "7" / "schedstat").write_bytes(b"200000000 130000000 9\n")

    kept = look(tmp_path, 7, host=after(tmp_path, change), window_ms=100.0)
    (process,) = kept.snapshot().processes
    assert (process.cpu_ms, process.cpu_ms_delta, process.state) == (2000.0, 150.0, "S")
    (thread,) = process.threads
    assert (thread.state, thread.state_after, thread.cpu_ms_delta) == ("S", "R", 150.0)
    assert (thread.voluntary_switches_delta, thread.involuntary_switches_delta) == (10, 1)
    assert thread.run_delay_ms_delta == 80.0
    assert (kept.parts, kept.finished) == (2, [7])


def test_one_that_ends_between_the_looks_is_kept_as_exited(tmp_path: Path) -> None:
    directory = ProcTree(tmp_path).add(7)
    kept = look(tmp_path, 7, host=after(tmp_path, (directory / "stat").unlink), window_ms=100.0)
    (process,) = kept.snapshot().processes
    assert process.exited
    assert process.comm == "sleep"
    assert (kept.finished, kept.misses) == ([7], {})


def test_gone_reused_and_kernel_threads(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.add(8, start=2000)
    tree.add(9, flags=KERNEL_THREAD)
    (tree.add(10) / "stat").write_bytes(b"nonsense")
    kept = look(tmp_path, 7, 8, 9, 10)
    assert kept.snapshot().processes == (Process(pid=7, start_ticks=1000, exited=True),)
    assert kept.misses == {
        8: "the process ended and another one has its pid now",
        9: "a thread of the kernel, not a process",
        10: f"reading {tmp_path}/proc/10/stat: no name in parentheses",
    }


def test_the_cap_on_threads_counts_over_all_processes_and_says_what_is_cut(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.add(10, tids=tuple(range(10, 15)))
    tree.add(20, tids=tuple(range(20, 25)))
    kept = look(tmp_path, 10, 20, caps=Caps(threads=7))
    assert [[thread.tid for thread in each.threads] for each in kept.snapshot().processes] == [
        [10, 11, 12, 13, 14],
        [20, 21],
    ]
    assert [each.thread_count for each in kept.snapshot().processes] == [5, 5]
    assert [detail for detail, _ in kept.partials] == ["truncated: of 5 threads of pid 20 2 were read"]


def test_the_main_thread_comes_first(tmp_path: Path) -> None:
    ProcTree(tmp_path).add(10, tids=(3, 10, 12))
    assert [thread.tid for thread in look(tmp_path, 10).snapshot().processes[0].threads] == [10, 3, 12]


@pytest.mark.parametrize(("version", "files"), [
    (1, {"sys/fs/cgroup/freezer/g/freezer.state": "FROZEN\n"}),
    (2, {"sys/fs/cgroup/g/cgroup.events": "populated 1\nfrozen 1\n"}),
    (2, {"sys/fs/cgroup/unified/g/cgroup.events": "populated 1\nfrozen 1\n"}),
])  # fmt: skip
def test_a_frozen_cgroup(tmp_path: Path, version: int, files: dict[str, str]) -> None:
    line = b"5:freezer:/g\n0::/\n" if version == 1 else b"0::/g\n"
    ProcTree(tmp_path).add(7, cgroup=line)
    assert not look(tmp_path, 7).snapshot().processes[0].frozen
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text(text)
    assert look(tmp_path, 7).snapshot().processes[0].frozen


def test_what_is_denied_is_said_once_with_what_to_grant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ProcTree(tmp_path).add(7, tids=tuple(range(7, 107)))
    real, asked = os.open, []

    def refuse(path: str, flags: int) -> int:
        if path.endswith(("/stack", "/syscall")):
            asked.append(path)
            raise PermissionError(1, "Operation not permitted", path)
        return real(path, flags)

    monkeypatch.setattr(procfs.os, "open", refuse)
    kept = look(tmp_path, 7)
    assert {thread.kernel_stack for thread in kept.snapshot().processes[0].threads} == {()}
    assert kept.partials == [
        ("kernel stacks of 100 threads are hidden", kernel_stacks.HINT),
        ("system calls of 100 threads are hidden", "run the agent as root or grant CAP_SYS_PTRACE"),
    ]
    assert sum(path.endswith("/stack") for path in asked) == 32
