from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from freezeframe.agentd import channel
from freezeframe.agentd.channel import INTRODUCTION
from freezeframe.agentd.jobs import Job, Target
from freezeframe.agentd.link import Worker
from freezeframe.agentd.workers import Workers
from freezeframe.judge.model import Outcome, Snapshot
from tests.programs.faulty_launcher import (
    COLLECTORS,
    CRASH_START_TICKS,
    STALL_VARIABLE,
    STALLED_START_TICKS,
    STUCK_START_TICKS,
)
from tests.support.stall import stalled_file

BY_NAME = {collector.name: collector for collector in COLLECTORS}
PROGRAM = Path(__file__).parents[1] / "programs" / "faulty_launcher.py"
STATUS = Outcome.Status


@dataclass
class Running:
    workers: Workers
    process: subprocess.Popen[bytes]
    parts: list[Snapshot]
    control: socket.socket | None = None
    doings: list[tuple[str, int]] = field(default_factory=list)

    async def run(self, name: str, *targets: Target, deadline_ms: float = 3000.0) -> Outcome:
        job = Job(job_id=1, collector=name, targets=targets, deadline_ms=deadline_ms)
        return await self.workers.run(BY_NAME[name], job, on_part=self.parts.append, on_doing=self._doing)

    def _doing(self, what: str, done: int) -> None:
        self.doings.append((what, done))

    def looked(self) -> list[int]:
        return [process.pid for part in self.parts for process in part.processes if process.comm == "looked"]

    def link_workers(self) -> tuple[Worker, ...]:
        link = self.workers._link
        return () if link is None else tuple(link._workers.values())


@contextlib.asynccontextmanager
async def launcher(**environment: str) -> AsyncIterator[Running]:
    process, control = start_launcher(environment)
    it = Running(Workers(), process, [])
    it.control = introduce(control, it.workers)
    try:
        # A launcher that is still starting would eat up the first deadline.
        await it.run("tell_surroundings", deadline_ms=30_000.0)
        await until(lambda: not it.link_workers())
        it.parts.clear()
        it.doings.clear()
        yield it
    finally:
        it.workers.detach()
        it.control.close()
        assert it.process.wait(10) in (0, -signal.SIGKILL)


def start_launcher(environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], socket.socket]:
    control, theirs = channel.pair()
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(theirs.fileno())],
        pass_fds=(theirs.fileno(),),
        env={**os.environ, **environment, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    theirs.close()
    return process, control


def introduce(control: socket.socket, workers: Workers) -> socket.socket:
    front, back = channel.pair()
    channel.send(control, INTRODUCTION, (back.fileno(),))
    back.close()
    workers.attach(front)
    return control


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except OSError:
        return ""


async def until(condition: Callable[[], object], *, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        await asyncio.sleep(0.005)


def targets(count: int, *, ticks: int = STUCK_START_TICKS, stuck: int = 0) -> tuple[Target, ...]:
    return tuple(Target(pid=n, start_ticks=ticks if n == stuck else 1) for n in range(1, count + 1))


async def test_every_target_is_looked_at() -> None:
    async with launcher() as it:
        outcome = await it.run("look", *targets(5))
        assert (outcome.status, outcome.items, outcome.pids_missed) == (STATUS.OK, 5, ())
        assert it.looked() == [1, 2, 3, 4, 5]


async def test_a_stuck_target_is_left_out_and_the_rest_go_to_a_fresh_worker() -> None:
    async with launcher() as it:
        outcome = await it.run("look", *targets(5, stuck=3))
        assert (outcome.status, outcome.items, outcome.pids_missed) == (STATUS.PARTIAL, 4, (3,))
        assert outcome.detail == "pid 3: no answer within 200 ms: reading /proc/3/cmdline"
        assert it.looked() == [1, 2, 4, 5]
        assert [p.pid for part in it.parts for p in part.processes if p.memory_blocked] == [3]


async def test_at_the_deadline_what_was_sent_is_kept_and_the_rest_is_named() -> None:
    async with launcher() as it:
        begin = time.monotonic()
        outcome = await it.run("look_impatiently", *targets(3, stuck=2), deadline_ms=600.0)
        assert time.monotonic() - begin < 0.6 + 0.25
        assert outcome.status is STATUS.PARTIAL
        assert outcome.detail == "stopped at its deadline while reading /proc/2/cmdline"
        assert set(it.looked()) == {1}


async def test_a_worker_that_brings_nothing_has_timed_out() -> None:
    async with launcher() as it:
        outcome = await it.run("hang", deadline_ms=400.0)
        assert (outcome.status, outcome.detail) == (
            STATUS.TIMED_OUT, "stopped at its deadline while opening a fifo",
        )  # fmt: skip
        assert outcome.duration_ms < 400.0 + 250.0


@pytest.mark.parametrize(
    ("name", "status", "detail", "hint"),
    [
        ("crash", STATUS.FAILED, "the worker was killed by SIGSEGV while crashing", ""),
        ("lack", STATUS.UNAVAILABLE, "py-spy is not installed", "pip install 'freezeframe[agent]'"),
        ("skip", STATUS.SKIPPED, "nothing here", ""),
    ],
)
async def test_each_way_to_end(name: str, status: Outcome.Status, detail: str, hint: str) -> None:
    async with launcher() as it:
        outcome = await it.run(name)
        assert (outcome.status, outcome.detail, outcome.hint) == (status, detail, hint)


async def test_an_error_is_told_with_its_place() -> None:
    async with launcher() as it:
        outcome = await it.run("fail")
        assert outcome.status is STATUS.FAILED
        assert outcome.detail.startswith("RuntimeError at faulty_launcher.py:")


async def test_a_worker_that_eats_memory_ends_alone() -> None:
    async with launcher() as it:
        outcome = await it.run("eat_memory", deadline_ms=20_000.0)
        assert (outcome.status, outcome.detail) == (
            STATUS.FAILED, "out of memory: the worker's limit is 256 MiB",
        )  # fmt: skip
        assert (await it.run("look", *targets(1))).status is STATUS.OK


async def test_a_lot_comes_through_whole() -> None:
    async with launcher() as it:
        outcome = await it.run("big", deadline_ms=20_000.0)
        assert outcome.status is STATUS.OK
        assert sum(len(part.processes) for part in it.parts) == 100_000


async def test_foreign_bytes_end_the_run_and_nothing_else() -> None:
    async with launcher() as it:
        outcome = await it.run("foreign")
        assert outcome.status is STATUS.FAILED
        assert "a frame of kind 99 with 4294967295 bytes" in outcome.detail
        assert (await it.run("look", *targets(1))).status is STATUS.OK


async def test_without_a_launcher_the_outcome_says_so() -> None:
    workers = Workers()
    outcome = await workers.run(
        BY_NAME["hang"], Job(job_id=1, collector="hang", deadline_ms=100.0),
        on_part=lambda _part: None, on_doing=lambda _what, _done: None,
    )  # fmt: skip
    assert (outcome.status, outcome.detail) == (STATUS.FAILED, "starting a worker: the launcher is not there")


async def test_killed_workers_leave_no_zombie_and_no_descriptor() -> None:
    async with launcher() as it:
        await it.run("look", *targets(1))
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            await it.run("hang", deadline_ms=30.0)
        children = Path(f"/proc/{it.process.pid}/task/{it.process.pid}/children")
        deadline = time.monotonic() + 5
        while (children.read_text() or it.workers.abandoned()) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert children.read_text() == ""
        assert len(os.listdir("/proc/self/fd")) == before


async def test_cancelling_a_run_kills_its_worker() -> None:
    async with launcher() as it:
        run = asyncio.ensure_future(it.run("hang", deadline_ms=60_000.0))
        children = Path(f"/proc/{it.process.pid}/task/{it.process.pid}/children")
        deadline = time.monotonic() + 5
        while not children.read_text() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        (worker,) = map(int, children.read_text().split())
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        while os.path.exists(f"/proc/{worker}") and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert not os.path.exists(f"/proc/{worker}")


async def test_a_worker_that_has_not_ended_keeps_its_target_in_quarantine() -> None:
    """The launcher is held instead of the worker: nobody carries out the kill then."""
    async with launcher() as it:
        await it.run("look", *targets(1))
        await until(lambda: not it.link_workers())
        run = asyncio.ensure_future(it.run("look", *targets(1, stuck=1)))
        await until(lambda: any(worker.pid for worker in it.link_workers()))
        os.kill(it.process.pid, signal.SIGSTOP)
        try:
            first = await run
            assert (first.status, first.pids_missed) == (STATUS.TIMED_OUT, (1,))
            assert it.workers.abandoned() == 1
            second = await it.run("look", *targets(1))
            assert second.status is STATUS.SKIPPED
            assert second.detail.startswith("pid 1: quarantined: worker ")
        finally:
            os.kill(it.process.pid, signal.SIGCONT)
        await until(lambda: not it.workers.abandoned())
        assert (await it.run("look", *targets(1))).status is STATUS.OK


@pytest.mark.needs("fuse")
async def test_a_worker_beyond_sigkill_is_left_behind_and_its_target_alone(tmp_path: Path) -> None:
    with stalled_file(tmp_path) as stall:
        async with launcher(**{STALL_VARIABLE: stall.path}) as it:
            first = await it.run("look", *targets(5, stuck=3, ticks=STALLED_START_TICKS))
            assert (first.status, first.pids_missed, it.looked()) == (STATUS.PARTIAL, (3,), [1, 2, 4, 5])
            (abandoned,) = it.workers._quarantine.workers()
            assert (abandoned.collector, abandoned.targets) == ("look", {3})
            assert state(abandoned.worker_pid) == "D"
            for _ in range(20):
                again = await it.run("look", *targets(5, stuck=3, ticks=STALLED_START_TICKS))
                assert (again.status, again.pids_missed) == (STATUS.PARTIAL, (3,))
                assert (
                    again.detail
                    == f"pid 3: quarantined: worker {abandoned.worker_pid} was killed over it and has not ended"
                )
            assert it.workers.abandoned() == 1
            # The lock-free tier has no quarantine.
            free = await it.run("look_impatiently", *targets(1, stuck=1, ticks=STALLED_START_TICKS), deadline_ms=200.0)
            assert (free.status, free.pids_missed) == (STATUS.TIMED_OUT, (1,))
            assert it.workers.abandoned() == 2
            stall.release()
            await until(lambda: it.workers.abandoned() == 0)
            assert (await it.run("look", *targets(5, stuck=3, ticks=STALLED_START_TICKS))).status is STATUS.OK


@pytest.mark.needs("fuse")
async def test_a_helper_that_outlives_its_worker_counts(tmp_path: Path) -> None:
    with stalled_file(tmp_path) as stall:
        async with launcher(**{STALL_VARIABLE: stall.path}) as it:
            first = await it.run("leave_helper", *targets(2, stuck=2, ticks=STALLED_START_TICKS))
            assert (first.status, first.detail) == (STATUS.PARTIAL, "pid 2: cat gave no answer")
            await until(lambda: it.workers.abandoned() == 1)
            second = await it.run("leave_helper", *targets(2, stuck=2, ticks=STALLED_START_TICKS))
            assert second.detail.startswith("pid 2: quarantined: worker ")
            stall.release()
            await until(lambda: it.workers.abandoned() == 0)


@pytest.mark.needs("fuse")
async def test_what_was_abandoned_is_known_to_the_next_front_and_the_next_launcher(tmp_path: Path) -> None:
    with stalled_file(tmp_path) as stall:
        async with launcher(**{STALL_VARIABLE: stall.path}) as it:
            await it.run("look", *targets(1, stuck=1, ticks=STALLED_START_TICKS))
            it.workers.detach()
            it.workers = Workers()
            assert it.control is not None
            introduce(it.control, it.workers)
            await until(lambda: it.workers.abandoned() == 1)
            skipped = await it.run("look", *targets(1, stuck=1, ticks=STALLED_START_TICKS))
            assert skipped.status is STATUS.SKIPPED
            it.process.kill()
            it.control.close()
            # Its end is not held up by the worker.
            it.process.wait(5)
            it.process, control = start_launcher({STALL_VARIABLE: stall.path})
            it.control = introduce(control, it.workers)
            assert it.workers.abandoned() == 1
            stall.release()
            await until(lambda: it.workers.abandoned() == 0)


async def test_a_worker_in_a_gpu_driver_is_never_killed() -> None:
    async with launcher() as it:
        outcome = await it.run("drive_gpu", deadline_ms=500.0)
        assert outcome.detail == "stopped at its deadline while asking the driver"
        (abandoned,) = it.workers._quarantine.workers()
        assert (await it.run("drive_gpu")).detail == (
            f"quarantined: worker {abandoned.worker_pid} was killed and has not ended"
        )
        assert state(abandoned.worker_pid) == "S"
        os.kill(abandoned.worker_pid, signal.SIGKILL)
        await until(lambda: it.workers.abandoned() == 0)


async def test_a_crash_costs_one_target() -> None:
    async with launcher() as it:
        outcome = await it.run("look", *targets(5, stuck=3, ticks=CRASH_START_TICKS))
        assert (outcome.status, outcome.items, outcome.pids_missed) == (STATUS.PARTIAL, 4, (3,))
        assert outcome.detail == "pid 3: the worker was killed by SIGSEGV while reading /proc/3/cmdline"
        assert it.looked() == [1, 2, 4, 5]


async def test_a_run_goes_on_with_the_next_launcher() -> None:
    async with launcher() as it:
        assert it.control is not None
        run = asyncio.ensure_future(it.run("look_impatiently", *targets(3, stuck=2), deadline_ms=8000.0))
        await until(it.looked)
        workers = [worker.pid for worker in it.link_workers()]
        it.process.kill()
        it.process.wait(5)
        it.control.close()
        # They end with the launcher that forked them.
        await until(lambda: not any(map(state, workers)))
        it.process, control = start_launcher({})
        it.control = introduce(control, it.workers)
        await until(lambda: any(worker.pid for worker in it.link_workers()))
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert set(it.looked()) == {1}
        assert (await it.run("look", *targets(1))).status is STATUS.OK


async def test_without_another_launcher_what_was_sent_is_kept() -> None:
    async with launcher() as it:
        run = asyncio.ensure_future(it.run("look_impatiently", *targets(3, stuck=2), deadline_ms=1000.0))
        await until(it.looked)
        it.process.kill()
        outcome = await run
        assert (outcome.status, outcome.detail) == (STATUS.PARTIAL, "starting a worker: the launcher is not there")
        assert (outcome.pids_missed, it.looked()) == ((2, 3), [1])
        assert outcome.duration_ms < 1000.0 + 250.0


@pytest.mark.parametrize(
    ("name", "status", "detail"),
    [
        ("flood_parts", STATUS.PARTIAL, "over 48 MiB came; the rest was dropped"),
        ("flood_frames", STATUS.TIMED_OUT, "stopped at its deadline before it said what it was doing"),
        ("flood_doing", STATUS.TIMED_OUT, "stopped at its deadline while step "),
    ],
)
async def test_a_flood_is_cut_and_the_loop_goes_on(name: str, status: Outcome.Status, detail: str) -> None:
    async with launcher() as it:
        gaps: list[float] = []

        async def beat() -> None:
            while True:
                begin = time.monotonic()
                await asyncio.sleep(0.005)
                gaps.append(time.monotonic() - begin)

        beating = asyncio.ensure_future(beat())
        outcome = await it.run(name, deadline_ms=2000.0 if name != "flood_parts" else 30_000.0)
        beating.cancel()
        assert outcome.status is status
        assert outcome.detail.startswith(detail)
        assert name == "flood_parts" or outcome.duration_ms < 2000.0 + 250.0
        assert max(gaps) < 1.0
        assert len(it.doings) < 200


async def test_a_worker_owns_its_pipe_and_its_slot_alone() -> None:
    async with launcher() as it:
        outcome = await it.run("tell_surroundings")
        assert outcome.detail == "[0, 1, 2, 3, 4] True 500"


async def test_a_warm_worker_is_quick() -> None:
    async with launcher() as it:
        await it.run("look", *targets(1))
        times = []
        for _ in range(20):
            begin = time.monotonic()
            await it.run("look", *targets(1))
            times.append(time.monotonic() - begin)
        print(f"job to outcome, median: {1000 * sorted(times)[10]:.1f} ms")
        assert sorted(times)[10] < 0.1


def test_the_launcher_never_imports_grpc() -> None:
    code = "import sys, freezeframe.agentd.launcher; print([name for name in sys.modules if name.startswith('grpc')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
