"""Schedules over the wire, and captures that nobody called for beside those that somebody did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from freezeframe.agentd.capture import CaptureSpec, Urgency
from freezeframe.agentd.errors import LauncherDownError
from freezeframe.agentd.schedules.schedule import Schedule
from freezeframe.agentd.statuses import METADATA_KEY
from freezeframe.judge.model import Snapshot
from freezeframe.v1 import service_pb2
from tests.support.agent import CannedEngine, RunningAgent, running_agent
from tests.support.filled import canned_snapshot
from tests.support.waiting import eventually

UNCALLED = CaptureSpec(trigger="schedule a", schedule="a")


@pytest.fixture
async def agent(tmp_path: Path) -> AsyncIterator[RunningAgent]:
    async with running_agent(tmp_path) as running:
        yield running


async def capture(stub: Any) -> None:
    async for _ in stub.Capture(service_pb2.CaptureRequest()):
        pass


async def put(stub: Any, **fields: Any) -> None:
    await stub.PutSchedule(service_pb2.PutScheduleRequest(schedule=service_pb2.Schedule(**fields)))


async def listed(agent: RunningAgent) -> list[service_pb2.Schedule]:
    answer = await agent.stub("view").ListSchedules(service_pb2.ListSchedulesRequest())
    return list(answer.schedules)


async def test_a_trigger_is_added_listed_and_removed(agent: RunningAgent) -> None:
    wanted = service_pb2.CaptureRequest(window_ms=500, only=["read_logs"], note="on call")
    await put(agent.stub(), name="stuck", when="backlog", keep=3, cool_down_s=60, capture=wanted)
    await put(agent.stub(), name="daily", cron="0 3 * * *", jitter_s=0)
    daily, stuck = await listed(agent)
    assert (stuck.name, stuck.when, stuck.expression, stuck.hold_s) == ("stuck", "backlog", "backlog >= 1", 3.0)
    assert (stuck.keep, stuck.clear_s, stuck.cool_down_s, stuck.configured) == (3, 10.0, 60.0, False)
    assert (stuck.capture.window_ms, stuck.capture.deadline_ms) == (500.0, 5500.0)
    assert (stuck.capture.only, stuck.capture.note, stuck.next_at) == (["read_logs"], "on call", "")
    assert (daily.cron, daily.when, daily.next_at[10:]) == ("0 3 * * *", "", daily.next_at[10:])
    assert daily.next_at.endswith("Z")
    await agent.stub().DeleteSchedule(service_pb2.DeleteScheduleRequest(name="stuck"))
    assert [each.name for each in await listed(agent)] == ["daily"]
    assert [path.name for path in (agent.directory / "state/schedules").iterdir()] == ["daily.json"]
    assert [line["targets"] for line in agent.audit_lines()][:2] == [["schedule stuck"], ["schedule daily"]]


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"name": "a", "when": "stuck-for"}, "when: stuck-for: stuck-for needs a time"),
        ({"name": "a", "when": "open('/etc/shadow')"}, "when: \"open('/etc/shadow')\": there is no 'open'"),
        (
            {"name": "/etc/x", "interval_s": 60},
            "name '/etc/x' must be up to 64 letters, digits, dots, dashes or underscores",
        ),
        ({"name": "a", "interval_s": 60, "cron": "* * * * *"}, "exactly one of every, cron and when is needed"),
        ({"name": "a", "cron": "every day"}, "cron 'every day': it does not have five fields"),
        (
            {"name": "a", "interval_s": 60, "capture": service_pb2.CaptureRequest(pids=[1])},
            "a schedule captures the serving path: it takes no pid, client, profile or seizing",
        ),
        (
            {"name": "a", "interval_s": 60, "capture": service_pb2.CaptureRequest(only=["x"])},
            "reading --only and --skip: there is no collector 'x'",
        ),
    ],
)
async def test_what_cannot_be_is_refused(agent: RunningAgent, fields: dict[str, Any], detail: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await put(agent.stub(), **fields)
    (value,) = [value for key, value in caught.value.trailing_metadata() or () if key == METADATA_KEY]
    assert service_pb2.ErrorInfo.FromString(value).detail == detail  # type: ignore[arg-type]
    assert await listed(agent) == []


async def test_what_nobody_called_for_gives_way(agent: RunningAgent) -> None:
    agent.engine.release.clear()
    uncalled = asyncio.create_task(agent.parts.captures.uncalled(UNCALLED, Urgency.PATIENT))
    await eventually(lambda: [spec.trigger for spec in agent.engine.specs] == ["schedule a"])
    called = asyncio.create_task(capture(agent.stub()))
    # The caller's begins at once, and only its end lets the other one begin again.
    await eventually(lambda: [spec.trigger for spec in agent.engine.specs] == ["schedule a", "snap"])
    assert agent.engine.cancelled == 1
    second = asyncio.create_task(agent.parts.captures.uncalled(replace(UNCALLED, schedule="b"), Urgency.PATIENT))
    agent.engine.release.set()
    await called
    captured, why_not = await uncalled
    assert (captured.snapshot_id, why_not) == ("gpu-07-20260102T030405-0003", "")
    await second
    assert [spec.schedule for spec in agent.engine.specs] == ["a", "", "a", "b"]


async def test_of_those_that_wait_the_most_urgent_is_next(agent: RunningAgent) -> None:
    def begin(name: str, urgency: Urgency) -> asyncio.Task[Any]:
        return asyncio.create_task(agent.parts.captures.uncalled(replace(UNCALLED, schedule=name), urgency))

    agent.engine.release.clear()
    waiting = [begin("runs", Urgency.FIRST_LOOK)]
    await eventually(lambda: len(agent.engine.specs) == 1)
    # Whom it gives way to.
    called = asyncio.create_task(capture(agent.stub()))
    await eventually(lambda: len(agent.engine.specs) == 2)
    waiting += [
        begin("patient", Urgency.PATIENT),
        begin("look", Urgency.FIRST_LOOK),
        begin("given up", Urgency.PASSING),
        begin("exit", Urgency.PASSING),
    ]
    await asyncio.sleep(0)
    waiting.pop(3).cancel()
    agent.engine.release.set()
    await asyncio.gather(called, *waiting)
    order = [spec.schedule for spec in agent.engine.specs]
    assert order == ["runs", "", "exit", "runs", "look", "patient"]


async def test_what_nobody_called_for_costs_callers_neither_place_nor_token(agent: RunningAgent) -> None:
    for _ in range(100):
        await agent.parts.captures.uncalled(UNCALLED, Urgency.PATIENT)
    assert agent.parts.captures._tokens == 30.0


async def test_the_end_of_the_agent_ends_it(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as agent:
        agent.engine.release.clear()
        uncalled = asyncio.create_task(agent.parts.captures.uncalled(UNCALLED, Urgency.PATIENT))
        await eventually(lambda: bool(agent.engine.specs))
    with pytest.raises(LauncherDownError, match="the agent is stopping"):
        await uncalled


async def test_what_waits_at_the_end_of_the_agent_does_not_begin(tmp_path: Path) -> None:
    async def call(agent: RunningAgent) -> None:
        async with agent.parts.captures.join(CaptureSpec()) as part:
            await part.captured()

    async with running_agent(tmp_path) as agent:
        agent.engine.release.clear()
        called = asyncio.create_task(call(agent))
        await eventually(lambda: len(agent.engine.specs) == 1)
        uncalled = asyncio.create_task(agent.parts.captures.uncalled(UNCALLED, Urgency.PATIENT))
        await asyncio.sleep(0)
    for ended in (called, uncalled):
        with pytest.raises(LauncherDownError, match="the agent is stopping"):
            await ended
    assert [spec.trigger for spec in agent.engine.specs] == ["snap"]


async def test_a_caller_who_leaves_at_once_ends_none_of_them(agent: RunningAgent) -> None:
    agent.engine.release.clear()
    uncalled = asyncio.create_task(agent.parts.captures.uncalled(UNCALLED, Urgency.PATIENT))
    await eventually(lambda: len(agent.engine.specs) == 1)
    async with agent.parts.captures.join(CaptureSpec()):
        pass
    agent.engine.release.set()
    captured, _ = await uncalled
    assert captured.snapshot_id.startswith("gpu-07-")


async def test_of_a_schedule_the_last_ones_are_kept(tmp_path: Path) -> None:
    def make(snapshot_id: str) -> Snapshot:
        snapshot = canned_snapshot(snapshot_id)
        assert snapshot.meta is not None
        return replace(snapshot, meta=replace(snapshot.meta, schedule=engine.specs[-1].schedule))

    engine = CannedEngine(make)
    async with running_agent(tmp_path, engine=engine) as agent:
        assert agent.parts.schedules is not None
        await agent.parts.schedules.put(Schedule(name="a", every_s=3600, keep=2))
        (entry,) = agent.parts.schedules.listed()

        async def run() -> None:
            entry.due = time.time()
            agent.parts.schedules.tick()  # type: ignore[union-attr]
            await eventually(lambda: entry.busy is None)

        async def kept() -> list[str]:
            answer = await agent.stub("view").ListSnapshots(service_pb2.ListSnapshotsRequest())
            return [each.snapshot_id[-1] for each in answer.snapshots]

        for _ in range(2):
            await run()
        await capture(agent.stub())
        assert await kept() == ["3", "2", "1"]
        await agent.stub().PinSnapshot(
            service_pb2.PinSnapshotRequest(snapshot_id="gpu-07-20260102T030405-0001", pinned=True)
        )
        for _ in range(3):
            await run()
        # A snap is nobody's, what is pinned stays.
        assert await kept() == ["6", "5", "3", "1"]
    async with running_agent(tmp_path, engine=engine) as agent:
        await asyncio.wait_for(agent.parts.schedules._loaded.wait(), 10)  # type: ignore[union-attr]
        (entry,) = agent.parts.schedules.listed()  # type: ignore[union-attr]
        assert [each[-1] for each in entry.kept] == ["5", "6"]
