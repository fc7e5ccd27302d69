"""The engine over the real collectors and a real serving bed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from freezeframe.agentd.capture import CaptureSpec, Step
from freezeframe.agentd.collectors import COLLECTORS
from freezeframe.agentd.engine import INTERNAL, PROFILE, Engine
from freezeframe.agentd.errors import UnknownCollectorError
from freezeframe.agentd.pidfds import Held
from freezeframe.agentd.workers import Workers
from freezeframe.judge.correlate.roles import serving_processes
from freezeframe.judge.model import Meta, Outcome, Process, Snapshot
from tests.bed.bed import Bed
from tests.support.launching import real_workers

pytestmark = pytest.mark.needs("root", "e2e")


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with Bed.start(wedge="router-dual-leg", stray=True) as running:
        running.wait_wedged()
        yield running


def make_engine(workers: Workers) -> Engine:
    return Engine(
        workers=workers,
        collectors=COLLECTORS,
        serving=lambda processes, sockets, metrics: serving_processes(processes, sockets, {}, metrics),
        conclude=lambda snapshot: snapshot,
        hold=Held,
        identity=Meta(host="gpu-07", agent_version="0.1.0", boot_id="b"),
    )


async def capture(spec: CaptureSpec, steps: list[Step] | None = None) -> Snapshot:
    async with real_workers() as workers:
        engine = make_engine(workers)
        await engine.warm()
        return await engine.capture(spec, (steps if steps is not None else []).append)


async def test_every_process_of_the_bed_is_found_with_its_role(bed: Bed) -> None:
    snapshot = await capture(CaptureSpec(window_ms=0.0))
    role = {process.pid: process.role for process in snapshot.processes}
    kind = {process.pid: process.disaggregation for process in snapshot.processes}
    for name in ("prefill", "decode"):
        engine = bed.pids.engines[name]
        assert role[engine.http] is Process.Role.ENGINE_HTTP
        assert role[engine.scheduler] is Process.Role.SCHEDULER
        assert role[engine.detokenizer] is Process.Role.DETOKENIZER
        assert {kind[engine.http], kind[engine.scheduler], kind[engine.detokenizer]} == {name}
    assert role[bed.pids.router] is Process.Role.ROUTER
    assert role[bed.pids.harness] is Process.Role.CLIENT
    assert bed.pids.stray is not None
    assert role[bed.pids.stray] is Process.Role.CLIENT


async def test_a_capture_has_an_outcome_of_each_collector_and_what_it_brought(bed: Bed) -> None:
    steps: list[Step] = []
    begin = time.monotonic()
    snapshot = await capture(CaptureSpec(window_ms=300.0, note="n"), steps)
    assert time.monotonic() - begin < 20
    # A profile was not asked for.
    names = [c.name for c in COLLECTORS if c.name not in (*INTERNAL, PROFILE)]
    told = [outcome for outcome in snapshot.outcomes if outcome.collector not in INTERNAL]
    assert [outcome.collector for outcome in told] == names
    expected = {**dict.fromkeys(names, Outcome.Status.OK), "trace_requests": Outcome.Status.UNAVAILABLE}
    expected |= dict.fromkeys(("trace_futex", "read_history"), Outcome.Status.UNAVAILABLE)
    if not os.path.exists("/dev/nvidiactl"):
        expected["snapshot_gpus"] = Outcome.Status.SKIPPED
    assert {outcome.collector: outcome.status for outcome in told} == expected, told
    why = [outcome.detail for outcome in told if outcome.status is Outcome.Status.UNAVAILABLE]
    assert why == [
        "the recorder is not running", "the recorder is not running: only which threads wait now is known",
        "the recorder is not running",
    ]  # fmt: skip
    assert {each.pid for each in snapshot.futex_waits} & set(bed.pids.all())
    assert {step.collector for step in steps if step.outcome is not None} == set(names)
    edges = Counter((each.pid, each.peer_pid) for each in snapshot.sockets if each.family == "tcp" and each.accepted)
    assert edges[bed.pids.router, bed.pids.harness] == 30
    assert edges[bed.pids.prefill.http, bed.pids.router] >= 30
    stack = next(each for each in snapshot.python_threads if each.pid == bed.pids.harness)
    assert stack.frames
    assert snapshot.meta is not None
    assert (snapshot.meta.host, snapshot.meta.note, snapshot.meta.window_ms) == ("gpu-07", "n", 300.0)
    (harness,) = [process for process in snapshot.processes if process.pid == bed.pids.harness]
    assert harness.threads[0].cpu_ms_delta is not None
    assert harness.cpu_ms_delta is not None


async def test_a_stream_moves_and_hung_requests_do_not(bed: Bed) -> None:
    snapshot = await capture(CaptureSpec(window_ms=500.0, only=("snapshot_sockets",)))
    moved = {
        each.pid for each in snapshot.sockets if each.family == "tcp" and not each.accepted and each.bytes_in_delta
    }
    assert bed.pids.stray in moved
    assert bed.pids.harness not in moved
    skipped = [each for each in snapshot.outcomes if each.status is Outcome.Status.SKIPPED]
    assert {each.detail for each in skipped} == {"not asked for"}


async def test_an_unknown_collector_is_refused() -> None:
    async with real_workers() as workers:
        with pytest.raises(UnknownCollectorError, match="there is no collector 'snapshot_sokets'"):
            await make_engine(workers).capture(CaptureSpec(only=("snapshot_sokets",)), lambda _step: None)


async def test_an_impossible_deadline_still_gives_a_snapshot(bed: Bed) -> None:
    begin = time.monotonic()
    snapshot = await capture(CaptureSpec(window_ms=1000.0, deadline_ms=300.0))
    assert snapshot.outcomes
    assert time.monotonic() - begin < 15


async def test_asked_for_one_process_it_looks_at_that_and_its_peers_only(bed: Bed) -> None:
    assert bed.pids.stray is not None
    snapshot = await capture(CaptureSpec(window_ms=0.0, pids=(bed.pids.stray,)))
    assert {process.pid for process in snapshot.processes} == {bed.pids.stray, bed.pids.decode.http}


async def test_a_process_without_a_role_is_looked_at_when_asked_for(bed: Bed) -> None:
    snapshot = await capture(CaptureSpec(window_ms=0.0, pids=(os.getpid(),)))
    (process,) = [each for each in snapshot.processes if each.pid == os.getpid()]
    assert process.threads


async def test_a_process_that_was_asked_for_and_is_not_there_is_said(bed: Bed) -> None:
    snapshot = await capture(CaptureSpec(window_ms=0.0, pids=(bed.pids.router, 4194303), client_pid=4194302))
    (outcome,) = [outcome for outcome in snapshot.outcomes if outcome.collector == "find_processes"]
    assert outcome.status is Outcome.Status.PARTIAL
    assert outcome.pids_missed == (4194302, 4194303)
    assert "pid 4194303: no process has it now" in outcome.detail
    assert bed.pids.router in {process.pid for process in snapshot.processes}


async def test_a_capture_that_nobody_waits_for_leaves_no_worker(bed: Bed) -> None:
    async with real_workers() as workers:
        engine = make_engine(workers)
        await engine.warm()
        begun = asyncio.Event()
        spec = CaptureSpec(window_ms=20_000.0, deadline_ms=60_000.0)
        running = asyncio.ensure_future(engine.capture(spec, lambda _step: begun.set()))
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        deadline = time.monotonic() + 5
        while len(asyncio.all_tasks()) > 1 and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert asyncio.all_tasks() == {asyncio.current_task()}


RENAMED = """
import sys
print("up", flush=True)
sys.stdin.readline()
from setproctitle import setproctitle
setproctitle("sglang::scheduler_TP3")
print("renamed", flush=True)
sys.stdin.read()
"""


async def test_a_process_that_names_itself_later_gets_its_new_title() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", RENAMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "up\n"
    async with real_workers() as workers:
        engine = make_engine(workers)
        await engine.warm()
        child.stdin.write("now\n")
        assert child.stdout.readline() == "renamed\n"
        snapshot = await engine.capture(CaptureSpec(window_ms=0.0), lambda _step: None)
    child.communicate()
    (process,) = [each for each in snapshot.processes if each.pid == child.pid]
    assert (process.title, process.role, process.rank) == ("sglang::scheduler_TP3", Process.Role.SCHEDULER, "TP3")
