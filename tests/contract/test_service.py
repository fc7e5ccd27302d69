from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from freezeframe.agentd import errors
from freezeframe.agentd.config import CaptureLimits, StoreLimits
from freezeframe.agentd.roles import MINIMUM_ROLE, Role, allowed
from freezeframe.agentd.statuses import METADATA_KEY, TABLE, status_of
from freezeframe.judge import SCHEMA, file, wire
from freezeframe.judge.model import Process, Snapshot
from freezeframe.v1 import service_pb2
from tests.support.agent import COLLECTORS, CannedEngine, RunningAgent, running_agent
from tests.support.filled import canned_snapshot
from tests.support.waiting import eventually

Reason = service_pb2.ErrorInfo.Reason
SERVICES = service_pb2.DESCRIPTOR.services_by_name
METHODS = SERVICES["CaptureService"].methods_by_name

REQUESTS = {
    "Capture": service_pb2.CaptureRequest(),
    "ListSnapshots": service_pb2.ListSnapshotsRequest(),
    "GetSnapshot": service_pb2.GetSnapshotRequest(snapshot_id="latest"),
    "PinSnapshot": service_pb2.PinSnapshotRequest(snapshot_id="none"),
    "DeleteSnapshot": service_pb2.DeleteSnapshotRequest(snapshot_id="none"),
    "GetCapabilities": service_pb2.GetCapabilitiesRequest(),
    "ListSchedules": service_pb2.ListSchedulesRequest(),
    "PutSchedule": service_pb2.PutScheduleRequest(),
    "DeleteSchedule": service_pb2.DeleteScheduleRequest(name="x"),
    "Watch": service_pb2.WatchRequest(),
}


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[RunningAgent]:
    async with running_agent(tmp_path) as running:
        yield running


async def capture(stub: Any, **fields: Any) -> list[Any]:
    return [event async for event in stub.Capture(service_pb2.CaptureRequest(**fields))]


def data_of(events: list[Any]) -> bytes:
    return b"".join(event.chunk.data for event in events if event.HasField("chunk"))


def info_of(error: grpc.aio.AioRpcError) -> service_pb2.ErrorInfo:
    (value,) = [value for key, value in error.trailing_metadata() or () if key == METADATA_KEY]
    return service_pb2.ErrorInfo.FromString(value)  # type: ignore[arg-type]


async def outcome_of(agent: RunningAgent, role: str, rpc: str, request: Any = None) -> str:
    call = getattr(agent.stub(role), rpc)(REQUESTS[rpc] if request is None else request)
    try:
        if METHODS[rpc].server_streaming:
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return Reason.Name(info_of(error).reason)
    return "OK"


def refused_capture(reason: str, detail: str, **fields: Any) -> Any:
    return pytest.param(service_pb2.CaptureRequest(**fields), reason, detail, id=detail)


async def test_a_capture_streams_progress_then_the_file_then_the_end(agent: RunningAgent) -> None:
    events = await capture(agent.stub(), note="why\x1b[2J\n")
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds == ["progress"] * kinds.count("progress") + ["chunk"] * kinds.count("chunk") + ["done"]
    last_progress = [event.progress for event in events if event.HasField("progress")][-1]
    assert last_progress.collector == "snapshot_processes"
    assert last_progress.outcome.items == 2
    data = data_of(events)
    done = events[-1].done
    assert done.snapshot_id == "gpu-07-20260102T030405-0001"
    assert (done.bytes, done.digest) == (len(data), hashlib.sha256(data).digest())
    assert (done.kept, done.not_kept_because, done.shared) == (True, "", False)
    assert file.read(data).hosts == (wire.to_message(canned_snapshot(done.snapshot_id)),)
    assert agent.engine.specs[0].note == "why\\x1b[2J\\x0a"


async def test_progress_comes_while_the_capture_runs(agent: RunningAgent) -> None:
    agent.engine.release.clear()
    call = aiter(agent.stub().Capture(service_pb2.CaptureRequest()))
    event = await asyncio.wait_for(anext(call), 10)
    assert event.progress == service_pb2.Progress(
        collector="snapshot_processes", doing="reading /proc/4711/stat", done=1, total=2
    )
    agent.engine.release.set()
    assert [event.WhichOneof("event") async for event in call][-1] == "done"


async def test_what_the_client_leaves_out_is_the_agents_default(agent: RunningAgent) -> None:
    await capture(agent.stub())
    await capture(
        agent.stub(), window_ms=0, deadline_ms=700, pids=[9, 7, 9], only=["read_logs"], client_pid=5, toward=[80, 80]
    )
    first, second = agent.engine.specs
    assert (first.window_ms, first.deadline_ms, first.pids, first.client_pid) == (1000.0, 6000.0, (), None)
    assert (second.window_ms, second.deadline_ms, second.pids, second.client_pid) == (0.0, 700.0, (7, 9), 5)
    assert (first.toward, second.toward) == ((), (80,))
    assert second.only == ("read_logs",)


async def test_a_large_snapshot_comes_whole_in_chunks_of_a_mebibyte(tmp_path: Path) -> None:
    noise = os.urandom(9_000_000).hex()

    def make(snapshot_id: str) -> Snapshot:
        return Snapshot(meta=canned_snapshot(snapshot_id).meta, processes=(Process(pid=1, title=noise),))

    async with running_agent(tmp_path, engine=CannedEngine(make)) as agent:
        events = await capture(agent.stub())
        sizes = [len(event.chunk.data) for event in events if event.HasField("chunk")]
        assert len(sizes) > 8
        assert set(sizes[:-1]) == {1_048_576}
        data = data_of(events)
        assert hashlib.sha256(data).digest() == events[-1].done.digest
        assert file.read(data).hosts[0].processes[0].title == noise


@pytest.mark.parametrize(
    ("request_", "reason", "detail"),
    [
        refused_capture("BAD_REQUEST", "--window must be a number of seconds, 0 or more", window_ms=-1),
        refused_capture("BAD_REQUEST", "--deadline must be a number of seconds, 0 or more", deadline_ms=float("nan")),
        refused_capture("BAD_REQUEST", "--window 31 is more than this agent allows (30 s)", window_ms=31_000),
        refused_capture("BAD_REQUEST", "--profile 31 is more than this agent allows (30 s)", profile_s=31),
        refused_capture("BAD_REQUEST", "a deadline of 1 s leaves no time beside a window", deadline_ms=1000),
        refused_capture("BAD_REQUEST", "--allow-seize is not allowed on this host", allow_seize=True),
        refused_capture("BAD_REQUEST", "0 is no pid", pids=[1, 0]),
        refused_capture("BAD_REQUEST", "4294967295 is no pid", client_pid=4_294_967_295),
        refused_capture("BAD_REQUEST", "1,001 pids were given", pids=range(1, 1002)),
        refused_capture("BAD_REQUEST", "70000 is no port", toward=[30000, 70000]),
        refused_capture("BAD_REQUEST", "1,001 ports of other hosts were given", toward=range(1, 1002)),
        refused_capture("BAD_REQUEST", "'/etc/passwd' is no client", client_address="/etc/passwd"),
        refused_capture("BAD_REQUEST", "'10.0.0.7:99999' is no client", client_address="10.0.0.7:99999"),
        refused_capture("BAD_REQUEST", "--note has 5,000 bytes", note="x" * 5000),
        refused_capture("BAD_REQUEST", "--only and --skip leave no collector", only=["read_logs"], skip=["read_logs"]),
        refused_capture(
            "UNKNOWN_COLLECTOR", "reading --only and --skip: there is no collector 'read_log'", skip=["read_log"]
        ),
    ],
)
async def test_a_request_that_cannot_be_is_refused(
    agent: RunningAgent, request_: service_pb2.CaptureRequest, reason: str, detail: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        [event async for event in agent.stub().Capture(request_)]
    info = info_of(caught.value)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == info.detail
    assert (Reason.Name(info.reason), info.detail[: len(detail)]) == (reason, detail)
    assert info.hint
    assert agent.engine.specs == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("10.0.0.7:80", "10.0.0.7:80"),
        ("FD00::0:1", "fd00::1"),
        ("[fd00::1]:80", "[fd00::1]:80"),
    ],
)
async def test_a_client_address_has_one_spelling(agent: RunningAgent, text: str, expected: str) -> None:
    await capture(agent.stub(), client_address=text)
    assert agent.engine.specs[0].client_address == expected


async def test_two_who_snap_at_once_share_one_capture(agent: RunningAgent) -> None:
    agent.engine.release.clear()
    first = asyncio.create_task(capture(agent.stub()))
    await asyncio.wait_for(agent.engine.begun.wait(), 10)
    other = asyncio.create_task(capture(agent.stub("capture")))
    await eventually(lambda: len(agent.parts.captures._runs[0].participants) == 2)
    agent.engine.release.set()
    events, shared = await first, await other
    assert len(agent.engine.specs) == 1
    assert data_of(events) == data_of(shared)
    assert [events[-1].done.shared, shared[-1].done.shared] == [False, True]


async def test_other_specs_are_captured_one_after_the_other(agent: RunningAgent) -> None:
    both = await asyncio.gather(capture(agent.stub(), note="a"), capture(agent.stub(), note="b"))
    assert sorted(spec.note for spec in agent.engine.specs) == ["a", "b"]
    assert [events[-1].done.shared for events in both] == [False, False]


async def test_a_full_queue_is_busy_at_once(tmp_path: Path) -> None:
    async with running_agent(tmp_path, capture=CaptureLimits(queue=1)) as agent:
        agent.engine.release.clear()
        stub = agent.stub()
        running = asyncio.create_task(capture(stub, note="runs"))
        await asyncio.wait_for(agent.engine.begun.wait(), 10)
        waiting = asyncio.create_task(capture(stub, note="waits"))
        await eventually(lambda: len(agent.parts.captures._runs) == 2)
        begin = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await capture(stub, note="too many")
        assert time.monotonic() - begin < 1.0
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert info_of(caught.value).reason == Reason.BUSY
        assert info_of(caught.value).detail == "1 captures wait already"
        agent.engine.release.set()
        await asyncio.gather(running, waiting)


async def test_captures_in_a_loop_meet_the_rate_limit(tmp_path: Path) -> None:
    async with running_agent(tmp_path, capture=CaptureLimits(burst=2, per_minute=0.001)) as agent:
        stub = agent.stub()
        await capture(stub)
        await capture(stub)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await capture(stub)
        assert info_of(caught.value).detail == "more than 0.001 captures a minute were asked for"


async def test_a_client_that_leaves_cancels_a_capture_that_nobody_else_waits_for(agent: RunningAgent) -> None:
    agent.engine.release.clear()
    calls = [agent.stub().Capture(service_pb2.CaptureRequest()) for _ in range(2)]
    for call in calls:
        await asyncio.wait_for(call.read(), 10)
    assert len(agent.engine.specs) == 1
    calls[0].cancel()
    await eventually(lambda: len(agent.parts.captures._runs[0].participants) == 1)
    assert agent.engine.cancelled == 0
    calls[1].cancel()
    await eventually(lambda: agent.engine.cancelled == 1)
    agent.engine.release.set()
    assert (await capture(agent.stub()))[-1].done.snapshot_id.endswith("0002")


async def test_a_capture_that_fails_tells_everyone_and_the_next_one_works(agent: RunningAgent) -> None:
    agent.engine.error = errors.LauncherDownError("starting a worker: the launcher is being restarted", "try again")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await capture(agent.stub())
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert info_of(caught.value) == service_pb2.ErrorInfo(
        reason=Reason.LAUNCHER_DOWN, detail="starting a worker: the launcher is being restarted", hint="try again"
    )
    agent.engine.error = None
    assert (await capture(agent.stub()))[-1].done.kept


async def test_an_error_nobody_thought_of_tells_nothing_of_itself(agent: RunningAgent) -> None:
    agent.engine.error = ValueError("secret")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await capture(agent.stub())
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert info_of(caught.value).reason == Reason.INTERNAL
    assert "secret" not in str(caught.value)
    assert "ValueError: secret" in agent.log.getvalue()


async def test_a_store_that_fails_costs_no_capture(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("a file")
    async with running_agent(tmp_path, store_path=tmp_path / "blocked" / "s") as agent:
        events = await capture(agent.stub())
        assert file.read(data_of(events)).lost == ()
        done = events[-1].done
        assert not done.kept
        assert done.not_kept_because == f"opening the store {tmp_path}/blocked/s: File exists"
        assert await outcome_of(agent, "view", "ListSnapshots") == "STORE_FAILED"


async def test_kept_snapshots_are_listed_got_pinned_and_deleted(agent: RunningAgent) -> None:
    stub = agent.stub()
    first = await capture(stub)
    second = await capture(stub)
    ids = [events[-1].done.snapshot_id for events in (second, first)]
    listed = (await stub.ListSnapshots(service_pb2.ListSnapshotsRequest())).snapshots
    assert [each.snapshot_id for each in listed] == ids
    assert listed[0].manifest.verdict.summary == "the router holds 30 requests"
    assert [len(part.sections) for part in listed[0].manifest.hosts] == [0]
    assert listed[0].bytes == len(data_of(second))
    assert len((await stub.ListSnapshots(service_pb2.ListSnapshotsRequest(limit=1))).snapshots) == 1

    got = [event async for event in stub.GetSnapshot(service_pb2.GetSnapshotRequest(snapshot_id="latest"))]
    assert b"".join(event.chunk.data for event in got) == data_of(second)
    assert got[-1].done.snapshot_id == ids[0]
    assert got[-1].done.digest == second[-1].done.digest

    await stub.PinSnapshot(service_pb2.PinSnapshotRequest(snapshot_id=ids[0], pinned=True))
    assert (await stub.ListSnapshots(service_pb2.ListSnapshotsRequest())).snapshots[0].pinned
    delete = service_pb2.DeleteSnapshotRequest(snapshot_id=ids[0])
    assert await outcome_of(agent, "admin", "DeleteSnapshot", delete) == "SNAPSHOT_PINNED"
    await stub.PinSnapshot(service_pb2.PinSnapshotRequest(snapshot_id=ids[0], pinned=False))
    assert await outcome_of(agent, "admin", "DeleteSnapshot", delete) == "OK"
    assert await outcome_of(agent, "admin", "DeleteSnapshot", delete) == "UNKNOWN_SNAPSHOT"
    get = service_pb2.GetSnapshotRequest(snapshot_id="../../etc/passwd")
    assert await outcome_of(agent, "view", "GetSnapshot", get) == "BAD_REQUEST"


async def test_limits_of_the_store_hold(tmp_path: Path) -> None:
    async with running_agent(tmp_path, store_limits=StoreLimits(max_snapshots=2)) as agent:
        stub = agent.stub()
        for _ in range(3):
            await capture(stub)
        assert len((await stub.ListSnapshots(service_pb2.ListSnapshotsRequest())).snapshots) == 2


async def test_capabilities_tell_what_the_agent_is(agent: RunningAgent) -> None:
    answer = await agent.stub("capture").GetCapabilities(service_pb2.GetCapabilitiesRequest())
    assert answer.uptime_ms > 0
    answer.uptime_ms = 0
    assert answer == service_pb2.GetCapabilitiesResponse(
        agent_version="0.1.0",
        schema=SCHEMA,
        host="gpu-07",
        kernel="6.18.0",
        roles=["view", "capture"],
        collectors=COLLECTORS,
        serving_ports=[30000],
        capabilities=[
            service_pb2.Capability(name="root", state=service_pb2.Capability.PRESENT, detail="runs as root"),
            service_pb2.Capability(
                name="bcc",
                state=service_pb2.Capability.ABSENT,
                detail="not installed",
                hint="apt install python3-bpfcc",
            ),
        ],
    )


def test_the_role_table_has_every_rpc() -> None:
    assert [*SERVICES] == ["CaptureService"]
    assert set(MINIMUM_ROLE) == set(METHODS) == set(REQUESTS)
    assert not allowed(Role.ADMIN, "Unheard")
    assert not any(allowed(None, rpc) for rpc in METHODS)


async def test_an_rpc_that_is_not_in_the_table_is_denied_to_everybody(
    agent: RunningAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rpc in METHODS:
        monkeypatch.delitem(MINIMUM_ROLE, rpc)
    for role in ALLOWED:
        assert {await outcome_of(agent, role, rpc) for rpc in METHODS} == {"NOT_SUPPORTED"}
    assert agent.engine.specs == []


# Written out a second time on purpose: what a role may do must not change by accident.
ALLOWED = {
    "view": {"ListSnapshots", "GetSnapshot", "GetCapabilities", "ListSchedules", "Watch"},
    "capture": {
        "ListSnapshots",
        "GetSnapshot",
        "GetCapabilities",
        "ListSchedules",
        "Watch",
        "Capture",
        "PinSnapshot",
    },
    "admin": set(METHODS),
}


async def test_each_role_may_do_what_the_table_says_and_nothing_else(agent: RunningAgent) -> None:
    for role, rpcs in ALLOWED.items():
        for rpc in METHODS:
            outcome = await outcome_of(agent, role, rpc)
            assert (outcome != "ROLE_REQUIRED") == (rpc in rpcs), (role, rpc, outcome)
    # Only the two that may reached the engine.
    assert len(agent.engine.specs) == 2


async def test_without_a_live_view_there_is_nothing_to_watch(agent: RunningAgent) -> None:
    assert await outcome_of(agent, "admin", "Watch") == "NOT_SUPPORTED"


def agent_errors(kind: type[errors.AgentError] = errors.AgentError) -> list[type[errors.AgentError]]:
    return [found for sub in kind.__subclasses__() for found in [sub, *agent_errors(sub)]]


def test_every_error_has_a_status_and_every_reason_an_error() -> None:
    assert set(TABLE) == set(agent_errors())
    for kind in agent_errors():
        code, info = status_of(kind("what", "next"))
        assert (code, info.reason) == TABLE[kind]
        assert (info.detail, info.hint) == ("what", "next")
    reasons = {reason for _, reason in TABLE.values()} | {Reason.INTERNAL}
    assert reasons == set(Reason.values()) - {Reason.UNSPECIFIED}
    assert len({reason for _, reason in TABLE.values()}) == len(TABLE)


def test_a_long_error_fits_the_metadata() -> None:
    _, info = status_of(errors.BadRequestError("x" * 100_000, "y" * 100_000))
    assert len(info.SerializeToString()) < 4096


async def test_one_audit_line_per_call_refused_ones_too(agent: RunningAgent) -> None:
    events = await capture(agent.stub("capture"), pids=[4711], client_address="10.0.0.7")
    await outcome_of(agent, "view", "DeleteSnapshot", service_pb2.DeleteSnapshotRequest(snapshot_id='a\n{"event": 1}'))
    call = agent.channel("view").unary_unary("/freezeframe.v1.CaptureService/Steal\u2028x")
    with pytest.raises(grpc.aio.AioRpcError):
        await call(b"")
    call = agent.channel("view").unary_unary("/freezeframe.v1.CaptureService/ListSnapshots")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"\xff\xff\xff")
    assert info_of(caught.value).reason == Reason.BAD_REQUEST
    # A call that no handler takes is written when its reply has gone.
    await eventually(lambda: len(agent.audit_lines()) >= 4)
    lines = agent.audit_lines()
    assert all(line.pop("ms") >= 0 and line.pop("timestamp") and line.pop("level") == "info" for line in lines)
    assert lines[0] == {
        "event": "call",
        "who": "socket capture",
        "rpc": "Capture",
        "targets": ["pid 4711", "client_address 10.0.0.7"],
        "outcome": "OK",
        "detail": "",
        "bytes": sum(event.ByteSize() for event in events),
    }
    # Two sockets, so two servers: calls close together may be written in either order.
    assert sorted((line["who"], line["outcome"], line["targets"]) for line in lines[1:]) == sorted(
        [
            ("socket view", "PERMISSION_DENIED", ['snapshot_id a\\x0a{"event": 1}']),
            ("socket view", "UNIMPLEMENTED", []),
            ("socket view", "INVALID_ARGUMENT", []),
        ]
    )
