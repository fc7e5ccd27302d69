"""Profiles of real processes: what each thread runs, its share of the CPU, and that it is never stopped."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from freezeframe.agentd.collectors.sample_stacks import HZ, SAMPLE_STACKS
from freezeframe.agentd.host import Host, procfs
from freezeframe.agentd.host.native import perf_events
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import Process, ProfileThread
from tests.integration.test_snapshot_native_stacks import waits
from tests.support import report
from tests.support.children import program
from tests.support.ranks import ranks
from tests.support.reports import KeptReport

pytestmark = pytest.mark.needs("root", "bpf", "gcc")

VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


def profile_of(*targets: Target, seconds: float = 2.0) -> tuple[dict[int, ProfileThread], KeptReport]:
    kept = KeptReport()
    job = Job(job_id=1, collector="sample_stacks", targets=targets, deadline_ms=60_000.0, profile_s=seconds)
    SAMPLE_STACKS.collect(job, Host(), kept)
    return {thread.tid: thread for thread in kept.gathered.records("profile")}, kept


def samples(thread: ProfileThread) -> int:
    return sum(stack.samples for stack in thread.stacks)


def share(thread: ProfileThread, function: str) -> float:
    inside = sum(s.samples for s in thread.stacks if any(f.function == function for f in s.frames))
    return inside / samples(thread)


def test_a_native_thread_that_spins_shows_its_loop_and_those_that_wait_what_they_wait_in() -> None:
    with waits("spin", "mutex", "read") as (pid, tids):
        threads, kept = profile_of(report.target(pid))
    assert (kept.finished, kept.misses) == ([pid], {})
    spinning = threads[tids["spin"]]
    # Samples come at their rate in CPU time, however much of that it got.
    assert samples(spinning) == pytest.approx(HZ * spinning.cpu_ms / 1000.0, rel=0.25, abs=3)
    assert share(spinning, "wait_spin") > 0.9
    (most, *_) = spinning.stacks
    assert [frame.function for frame in most.frames][:3] == ["wait_spin", "middle", "run"]
    # What it does not run it is ready to run.
    assert {wait.reason for wait in spinning.waits} <= {"runnable"}
    for name, call in (("mutex", "futex"), ("read", "read")):
        waiting = threads[tids[name]]
        assert (waiting.stacks, waiting.cpu_ms) == ((), pytest.approx(0.0, abs=5.0))
        assert (waiting.waits[0].reason, waiting.waits[0].share) == (call, 1.0)


def test_a_livelocked_scheduler_shows_its_loop_in_python_and_in_native_code() -> None:
    with ranks(1) as engine:
        engine.take("livelock")
        (pid,) = engine.pids
        report.until(lambda: procfs.stat(Host().proc(pid)).state == "R")
        threads, kept = profile_of(report.target(pid, role=Process.Role.SCHEDULER, python=VERSION))
    assert kept.misses == {}
    main = threads[pid]
    assert main.duration_ms == pytest.approx(2000, rel=0.5)
    for function in ("PrefillAdder.add_one_req", "Scheduler.get_next_batch_to_run", "Scheduler.event_loop_normal"):
        assert share(main, function if sys.version_info >= (3, 11) else function.rpartition(".")[2]) > 0.9
    assert share(main, "Py_BytesMain") > 0.9
    (most, *_) = main.stacks
    # The way in is native, the loop Python.
    assert not most.frames[-1].python
    assert [frame.function.rpartition(".")[2] for frame in most.frames if frame.python][:4] == [
        "add_one_req", "_get_new_batch_prefill_raw", "get_next_batch_to_run", "event_loop_normal",
    ]  # fmt: skip


def test_nobody_is_stopped_traced_or_left_with_an_event() -> None:
    with program("python_stacks.py", "spin") as process:
        begun = os.listdir("/proc/self/fd")
        _, kept = profile_of(report.target(process.pid, python=VERSION), seconds=0.5)
        assert kept.finished == [process.pid]
        assert procfs.stat(Host().proc(process.pid)).state not in {"T", "t"}
        assert procfs.status(Host().proc(process.pid)).tracer_pid == 0
        assert len(os.listdir("/proc/self/fd")) == len(begun)


def test_one_that_is_gone_and_one_that_ends_meanwhile() -> None:
    with program("python_stacks.py", "spin") as process:
        target = report.target(process.pid, python=VERSION)
    _, kept = profile_of(target, seconds=0.2)
    assert (kept.finished, kept.misses) == ([target.pid], {})
    with program("python_stacks.py", "spin") as process:
        target = report.target(process.pid, python=VERSION)
        ends = threading.Timer(1.0, process.kill)
        ends.start()
        threads, kept = profile_of(target, seconds=2.0)
        ends.join()
    assert (kept.finished, kept.misses) == ([target.pid], {})
    assert {thread.doubt for thread in threads.values() if thread.doubt} <= {"it ended before its samples were unwound"}


def test_without_the_right_to_sample_it_says_what_to_grant(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_sampler: object, tid: int) -> None:
        raise perf_events.PerfError(f"opening a perf event for thread {tid}: Permission denied", "grant CAP_PERFMON")

    monkeypatch.setattr(perf_events.Sampler, "watch", refused)
    with program("python_stacks.py") as process, pytest.raises(Exception, match="Permission denied") as caught:
        profile_of(report.target(process.pid, python=VERSION))
    assert caught.value.hint == "grant CAP_PERFMON"
