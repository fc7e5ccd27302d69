"""The daemon under faults that nothing ends: memory that cannot be read, and a worker beyond SIGKILL."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from freezeframe.agentd.collectors import COLLECTORS
from freezeframe.agentd.engine import INTERNAL, PROFILE, READ_COMMAND_LINES
from freezeframe.judge import file, wire
from freezeframe.judge.model import Outcome, Snapshot
from freezeframe.v1 import service_pb2, service_pb2_grpc
from tests.support.daemon import Daemon, running_daemon
from tests.support.stall import stalled_file, stalled_process, state

pytestmark = [pytest.mark.needs("root", "e2e", "fuse"), pytest.mark.timeout(120)]

DEADLINE_MS = 2000.0
CHECKS = 50
Status = Outcome.Status


def capture(agent: Daemon, pids: list[int], into: dict[str, object]) -> None:
    request = service_pb2.CaptureRequest(window_ms=0, deadline_ms=DEADLINE_MS, pids=pids)
    with grpc.insecure_channel(agent.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        begin = time.monotonic()
        events = list(service_pb2_grpc.CaptureServiceStub(channel).Capture(request, timeout=20))
        into["ms"] = (time.monotonic() - begin) * 1000.0
    into["data"] = b"".join(event.chunk.data for event in events)


def test_a_snapshot_in_time_and_health_at_once_while_memory_and_a_worker_are_stuck(tmp_path: Path) -> None:
    for name in ("memory", "disk"):
        (tmp_path / name).mkdir()
    came: dict[str, object] = {}
    answers = []
    with (
        running_daemon() as agent,
        grpc.insecure_channel(agent.address) as channel,
        stalled_file(tmp_path / "disk") as disk,
        open(disk.path, "rb") as log,
        # Its log is on the dead disk.
        subprocess.Popen(["sglang::scheduler"], executable="/bin/cat", stdin=subprocess.PIPE, stderr=log) as scheduler,
        stalled_process(tmp_path / "memory") as blocked,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        health.Check(health_pb2.HealthCheckRequest(), timeout=5)
        asking = threading.Thread(target=capture, args=(agent, [scheduler.pid, blocked], came))
        asking.start()
        for _ in range(CHECKS):
            begin = time.monotonic()
            health.Check(health_pb2.HealthCheckRequest(), timeout=5)
            answers.append((time.monotonic() - begin) * 1000.0)
            time.sleep(0.04)
        asking.join(10)
        # The faults last to the end: nothing here has waited for their end.
        assert state(blocked) == "D"
        scheduler.kill()
    snapshot = wire.from_message(file.read(came["data"]).hosts[0], Snapshot)
    assert came["ms"] <= DEADLINE_MS + 250.0
    assert (len(answers), max(answers) <= 50.0) == (CHECKS, True), max(answers)
    outcomes = {outcome.collector: outcome for outcome in snapshot.outcomes}
    # What could not be read of command lines is told; of the other steps that nobody asks for there is nothing to tell.
    assert {collector.name for collector in COLLECTORS} - outcomes.keys() == {*INTERNAL, PROFILE} - {READ_COMMAND_LINES}
    # The recorder may still be starting.
    for name in ("trace_requests", "trace_futex", "read_history"):
        outcomes.pop(name)
    fell_short = {name: o.status for name, o in outcomes.items() if o.status not in {Status.OK, Status.SKIPPED}}
    of_memory = ("read_command_lines", "snapshot_native_stacks", "snapshot_locks")
    assert fell_short == {**dict.fromkeys(of_memory, Status.PARTIAL), "read_logs": Status.PARTIAL}
    left_alone = f"pid {blocked}: thread {blocked} waits for the memory lock in mmap: left alone"
    assert outcomes["read_command_lines"].detail == left_alone
    # What one collector saw stuck, the others do not try.
    for name in ("snapshot_native_stacks", "snapshot_locks"):
        assert outcomes[name].detail.endswith("left alone")
    assert outcomes["read_logs"].detail == f"stopped at its deadline while reading /proc/{scheduler.pid}/fd/2"
    assert outcomes["read_logs"].pids_missed == (scheduler.pid,)
    print(f"capture {came['ms']:.0f} ms of {DEADLINE_MS:.0f}, health max {max(answers):.1f} ms")
