from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys

import pytest

from freezeframe.agentd.collectors.snapshot_native_stacks import SNAPSHOT_NATIVE_STACKS
from freezeframe.agentd.host import Host, procfs
from freezeframe.agentd.host.native import libdw, look, task_iterator
from tests.support import report
from tests.support.children import child
from tests.support.compiled import c_program, rust_program
from tests.support.native_stacks import OF_THE_PROGRAM, functions, resting, stacks_of, waits

pytestmark = pytest.mark.needs("bpf", "gcc")


def test_unwind_tables_in_compressed_debug_sections() -> None:
    # libelf writes into the section headers when it uncompresses what is needed here.
    options = ("-g", "-gz=zlib", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fomit-frame-pointer")
    with waits("recurse", "mutex", command=c_program("waits", *options)) as (pid, tids):
        threads, kept = stacks_of(pid)
    assert not kept.misses
    assert functions(threads[tids["recurse"]], "waits") == [*OF_THE_PROGRAM["recurse"], "middle", "run"]
    assert functions(threads[tids["mutex"]], "waits") == ["wait_mutex", "middle", "run"]


def test_every_wait_of_c_and_what_it_waits_for() -> None:
    with waits(*OF_THE_PROGRAM) as (pid, tids):
        threads, kept = stacks_of(pid)
    assert kept.finished == [pid]
    assert not kept.misses
    for wait, expected in OF_THE_PROGRAM.items():
        thread = threads[tids[wait]]
        assert (functions(thread, "waits"), thread.doubt) == ([*expected, "middle", "run"], ""), wait
        assert thread.kernel_frames
        assert "clone" in thread.frames[-1].function
    assert functions(threads[pid], "waits") == ["main", "_start"]
    said = {wait: threads[tid].wait for wait, tid in tids.items()}
    assert re.fullmatch(r"futex wait at 0x[0-9a-f]+, no timeout", said["mutex"])
    assert re.fullmatch(r"read fd 3 \(pipe:\[\d+\]\)", said["read"])
    assert said["sleep"] == "clock_nanosleep, timeout 100000.0 s"
    assert said["vfork"] == "vfork"
    assert threads[pid].wait == "pause"


def test_a_stopped_process() -> None:
    with waits("mutex", "read", "spin") as (pid, tids):
        os.kill(pid, signal.SIGSTOP)
        for tid in (pid, *tids.values()):
            report.until(lambda tid=tid: procfs.stat(f"/proc/{pid}/task/{tid}").state == "T")
        threads, _ = stacks_of(pid)
        assert procfs.stat(f"/proc/{pid}").state == "T"
    for what, tid in tids.items():
        assert functions(threads[tid], "waits") == [f"wait_{what}", "middle", "run"]
        assert threads[tid].doubt == ""


@pytest.mark.needs("strace")
def test_a_process_under_strace() -> None:
    with waits("mutex", "recurse") as (pid, tids):
        tracer = subprocess.Popen(["strace", "-f", "-o", os.devnull, "-p", str(pid)], stderr=subprocess.PIPE)
        try:
            report.until(lambda: all(procfs.status(f"/proc/{pid}/task/{tid}").tracer_pid for tid in tids.values()))
            resting(pid, list(tids.values()))
            threads, kept = stacks_of(pid)
        finally:
            tracer.terminate()
            tracer.wait(20)
            tracer.stderr.close()
    assert not kept.misses
    for what, tid in tids.items():
        assert functions(threads[tid], "waits") == [*OF_THE_PROGRAM[what], "middle", "run"]


def test_a_process_in_another_mount_namespace_whose_paths_name_other_files(tmp_path) -> None:
    # Inside, /…/program is the C program; outside, the same path is a file of zeros, and its libc's is another one.
    inside, path = tmp_path / "inside", tmp_path / "program"
    inside.mkdir()
    shutil.copy(c_program("waits"), inside / "program")
    path.write_bytes(b"\0" * 65536)
    command = f"mount --bind {inside}/program {path} && exec {path} mutex recurse"
    with child("unshare", "--mount", "--pid", "--fork", "sh", "-c", command, ready=False) as process:
        assert process.stdout.readline().startswith(b"ready")
        [pid] = children(process.pid)
        try:
            tids = [tid for tid in procfs.tids(f"/proc/{pid}") if tid != pid]
            resting(pid, tids)
            threads, kept = stacks_of(pid)
        finally:
            os.kill(pid, signal.SIGKILL)
    assert not kept.misses
    found = sorted(functions(threads[tid], "program") for tid in tids)
    assert found == sorted([*OF_THE_PROGRAM[what], "middle", "run"] for what in ("mutex", "recurse"))


def children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(number) for number in file.read().split()]


def test_a_program_whose_file_was_replaced(tmp_path) -> None:
    path = tmp_path / "program"
    shutil.copy(c_program("waits"), path)
    with waits("mutex", command=str(path)) as (pid, tids):
        path.unlink()
        shutil.copy("/bin/true", path)
        threads, kept = stacks_of(pid)
    assert not kept.misses
    assert functions(threads[tids["mutex"]], "program") == ["wait_mutex", "middle", "run"]


def test_stripped_gives_modules_and_offsets() -> None:
    def offsets(*options: str) -> list[tuple[str, list[tuple[str, float]]]]:
        with waits("mutex", "recurse", command=c_program("waits", *options)) as (pid, tids):
            threads, _ = stacks_of(pid)
        return [
            (
                what,
                [(frame.function, frame.offset) for frame in threads[tid].frames if frame.module.startswith("waits")],
            )
            for what, tid in tids.items()
        ]

    for (_, whole), (_, stripped) in zip(offsets(), offsets("-s"), strict=True):
        assert [offset for _, offset in whole] == [offset for _, offset in stripped]
        assert {name for name, _ in stripped} == {""}


def test_a_running_thread_is_told_with_where_it_entered_the_kernel() -> None:
    with waits("spin") as (pid, tids):
        # One that waits for a CPU would rest; have one to itself.
        report.until(lambda: stacks_of(pid)[0][tids["spin"]].doubt == look.RUNS)


def test_a_running_thread_is_stopped_once_when_that_is_allowed() -> None:
    with waits("spin", "mutex") as (pid, tids):
        threads, _ = stacks_of(pid, allow_seize=True)
        assert functions(threads[tids["spin"]], "waits") == ["wait_spin", "middle", "run"]
        assert threads[tids["spin"]].doubt == ""
        assert procfs.status(f"/proc/{pid}/task/{tids['spin']}").tracer_pid == 0


def test_never_an_impossible_stack_of_a_thread_that_never_rests() -> None:
    with waits("churn") as (pid, tids):
        for _ in range(40):
            thread = stacks_of(pid)[0][tids["churn"]]
            if thread.doubt:
                continue
            found = functions(thread, "waits")
            depth = found.count("churn_down")
            assert found == [*["churn_down"] * depth, "wait_churn", "middle", "run"]


@pytest.mark.needs("rustc")
@pytest.mark.parametrize("mangling", ["legacy", "v0"])
@pytest.mark.parametrize("count", [1, 8, 64, 512])
def test_threads_of_rust(mangling: str, count: int) -> None:
    # v0 is the only one that a stable compiler of today takes by name; legacy needs its unstable options.
    options = ("-C", "symbol-mangling-version=v0") if mangling == "v0" else ()
    if mangling == "legacy":
        version = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout
        if int(version.split(".")[1]) >= 97:
            pytest.skip("rustc no longer mangles the old way by itself")
    program = rust_program("parked", *options)
    with child(program, str(count)) as process:
        pid = process.pid
        resting(pid, procfs.tids(f"/proc/{pid}"))
        threads, kept = stacks_of(pid)
    assert not kept.misses
    by_name = {thread.name: thread for thread in threads.values()}
    for number in range(count):
        thread = by_name[f"w{number}"]
        named = [frame.function for frame in thread.frames]
        assert thread.doubt == ""
        assert named.count("parked::descend") == 21
        wait = named[named.index("parked::descend") - 1]
        assert re.fullmatch(rf"<parked::On{RUST_WAITS[number % 9]} as parked::Wait>::wait", wait)
        assert not [name for name in named if name.startswith(("_R", "_ZN"))]


RUST_WAITS = ("Mutex", "Condvar", "RwLock", "Channel", "Park", "Sleep", "Udp", "Accept", "Read")


@pytest.mark.needs("rustc")
def test_stripped_rust_has_the_same_depth() -> None:
    depths = []
    for options in ((), ("-C", "strip=symbols")):
        with child(rust_program("parked", "-C", "symbol-mangling-version=v0", *options), "64") as process:
            resting(process.pid, procfs.tids(f"/proc/{process.pid}"))
            threads, _ = stacks_of(process.pid)
            depths.append({thread.name: len(thread.frames) for thread in threads.values() if thread.name[:1] == "w"})
    assert depths[0] == depths[1]
    assert len(depths[0]) == 64


def test_of_very_many_threads_the_innermost_frames_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "_ALL_FRAMES", 40)
    monkeypatch.setattr(look, "_ALL_STACKS_BYTES", 2 * 8192)
    with waits("recurse", "mutex") as (pid, tids):
        threads, _ = stacks_of(pid)
    recursing = threads[tids["recurse"]]
    assert len(recursing.frames) == 16
    assert recursing.doubt == "cut off: only the 16 innermost frames were taken"
    assert threads[tids["mutex"]].doubt == ""


def test_two_looks_say_what_is_the_same() -> None:
    with waits("mutex") as (pid, tids):
        threads, kept = stacks_of(pid, window_ms=50.0)
    assert threads[tids["mutex"]].same_at_second_look is True
    assert kept.finished == [pid]


def test_without_an_iterator_frames_may_be_missing_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_machine: object) -> None:
        raise task_iterator.IteratorError("loading a task iterator: Operation not permitted", "grant CAP_BPF")

    monkeypatch.setattr(task_iterator, "load", refuse)
    with waits("mutex") as (pid, tids):
        threads, kept = stacks_of(pid)
    assert [hint for _, hint in kept.partials] == ["grant CAP_BPF"]
    thread = threads[tids["mutex"]]
    assert thread.doubt == look.FEW_REGISTERS
    assert "lll_lock_wait" in thread.frames[0].function


def test_without_libdw_the_innermost_frame_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise libdw.LibdwError("loading libdw: not there")

    monkeypatch.setattr(libdw, "load", refuse)
    with waits("mutex") as (pid, tids):
        threads, kept = stacks_of(pid)
    assert kept.partials[0][1].startswith("apt install libdw1")
    thread = threads[tids["mutex"]]
    assert len(thread.frames) == 1
    assert "lll_lock_wait" in thread.frames[0].function
    assert "libdw" in thread.doubt


def test_an_ended_process_and_another_one_in_its_place() -> None:
    with waits("mutex") as (pid, _):
        start_ticks = procfs.stat(f"/proc/{pid}").start_ticks
    target = report.target(pid, python="")
    kept = report.run(SNAPSHOT_NATIVE_STACKS, [target])
    assert (kept.finished, kept.misses) == ([pid], {})
    other = report.target(os.getpid())
    kept = report.run(SNAPSHOT_NATIVE_STACKS, [type(other)(pid=other.pid, start_ticks=start_ticks)])
    assert "another one has its pid" in kept.misses[other.pid]


def test_names_are_kept_on_disk_and_a_broken_index_is_built_again(tmp_path) -> None:
    host = Host(state_dir=str(tmp_path))
    with waits("mutex") as (pid, tids):
        first, _ = stacks_of(pid, host=host)
        kept = sorted((tmp_path / "symbols").iterdir())
        assert len(kept) >= 2
        assert {file.stat().st_mode & 0o777 for file in kept} == {0o600}
        for file in kept:
            file.write_bytes(file.read_bytes()[:-3])
        second, _ = stacks_of(pid, host=host)
        third, _ = stacks_of(pid, host=host)
    assert first[tids["mutex"]] == second[tids["mutex"]] == third[tids["mutex"]]


def test_the_target_sees_no_interrupted_call() -> None:
    code = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
epoll = libc.epoll_create1(0)
events = ctypes.create_string_buffer(64)
print("ready", flush=True)
while True:
    if libc.epoll_wait(epoll, events, 1, 100) < 0:
        print("interrupted", ctypes.get_errno(), flush=True)
    elif os.path.exists(sys.argv[1]):
        print("done", flush=True)
        signal.pause()
"""
    with child(sys.executable, "-c", code, "/nonexistent") as process:
        for _ in range(20):
            stacks_of(process.pid)
        assert procfs.status(f"/proc/{process.pid}").tracer_pid == 0
        os.set_blocking(process.stdout.fileno(), False)
        assert process.stdout.read() in (None, b"")
