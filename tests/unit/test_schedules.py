"""Readings, files and the runner: a canned captures, a clock of our own, real files."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from freezeframe.agentd.audit import Audit
from freezeframe.agentd.capture import CaptureSpec, Urgency
from freezeframe.agentd.captures import Captured
from freezeframe.agentd.errors import BadRequestError, LauncherDownError, UnknownScheduleError
from freezeframe.agentd.host import Clock
from freezeframe.agentd.logs import make_logger
from freezeframe.agentd.schedules import readings
from freezeframe.agentd.schedules.files import Files
from freezeframe.agentd.schedules.runner import Schedules
from freezeframe.agentd.schedules.schedule import Schedule
from freezeframe.judge.model import Edge, Host, KernelEvent, Pressure, Process, RecorderState, Snapshot, Socket
from tests.support.waiting import eventually

Role = Process.Role
CLIENT = Process(pid=1, role=Role.CLIENT)
ROUTER = Process(pid=2, role=Role.ROUTER, start_ticks=20)
ENGINE = Process(pid=3, role=Role.ENGINE_HTTP, start_ticks=30)
KNOWN = (CLIENT, ROUTER, ENGINE)


def edge(client: int | None, server: int, owed: int, wait: float, age: float, last: float | None, down: float) -> Edge:
    return Edge(
        client_pid=client,
        client_address="" if client else "10.0.0.7",
        server_pid=server,
        owed=owed,
        longest_wait_ms=wait if owed else None,
        oldest_owed_age_ms=age if owed else None,
        last_down_age_ms=last,
        bytes_down_per_s=down,
        bytes_up_per_s=1.0,
    )


def of(*edges: Edge, armed: bool = True) -> dict[str, float]:
    return readings.values(Snapshot(edges=edges, recorder=RecorderState() if armed else None), KNOWN, {})


def test_what_clients_wait_for() -> None:
    values = of(
        edge(1, 2, 30, 7_000, 90_000, 200, 1000.0),
        edge(None, 2, 1, 2_000, 2_000, None, 0.0),
        # Between processes of the path: nobody's wait.
        edge(2, 3, 30, 60_000, 90_000, 60_000, 50.0),
        # Of no path at all.
        edge(1, 9, 5, 99_000, 99_000, 99_000, 7.0),
    )
    assert values == {
        "requests": 31.0,
        "longest_wait_s": 7.0,
        "oldest_s": 90.0,
        "silent_s": 0.2,
        "answer_bytes": 1000.0,
        "request_bytes": 2.0,
        "backlog": 0.0,
        "xids": 0.0,
    }


def test_one_server_is_silent_beside_another_that_sends() -> None:
    stuck = edge(1, 2, 30, 40_000, 60_000, 40_000, 0.0)
    stray = edge(1, 3, 1, 20, 9_000, 20, 53.0)
    assert of(stuck, stray)["silent_s"] == 40.0
    # It had been silent for long, with nothing to answer.
    assert of(edge(1, 2, 1, 100, 100, 90_000, 0.0))["silent_s"] == 0.1
    assert of(edge(1, 2, 0, 0, 0, 90_000, 0.0))["silent_s"] == 0.0


def test_nothing_is_known_of_requests_without_the_recorder() -> None:
    assert of(armed=False) == {"backlog": 0.0, "xids": 0.0}


def test_processes_stop_and_end() -> None:
    living = readings.alive(Snapshot(processes=(ROUTER, ENGINE)))
    gone = Process(pid=2, start_ticks=20, state="X")
    stopped = Process(pid=3, start_ticks=30, state="T")
    frozen = Process(pid=3, start_ticks=30, state="S", frozen=True)

    def told(*processes: Process) -> tuple[float, float]:
        values = readings.values(Snapshot(processes=processes), KNOWN, living)
        return values["stopped"], values["exits"]

    assert told(ROUTER, stopped) == (1.0, 0.0)
    assert told(ROUTER, frozen) == (1.0, 0.0)
    assert told(gone, ENGINE) == (0.0, 1.0)
    # It had ended before.
    assert (
        readings.values(Snapshot(processes=(gone,)), KNOWN, readings.alive(Snapshot(processes=(gone,))))["exits"] == 0
    )


def test_backlogs_xids_and_pressure() -> None:
    part = Snapshot(
        sockets=(Socket(state="LISTEN", backlog=3), Socket(state="LISTEN", backlog=0)),
        kernel_events=(KernelEvent(kind="xid", code=79), KernelEvent(kind="oom")),
        host=Host(pressure=(Pressure(resource="memory", some_window=41.5), Pressure(resource="cpu"))),
    )
    assert readings.values(part, KNOWN, {}) == {"backlog": 3.0, "xids": 1.0, "psi_memory": 41.5}


def test_files_keep_schedules_and_a_damaged_one_costs_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "schedules"
    files = Files(str(folder))
    assert files.load().schedules == ()
    kept = Schedule(name="a", when="stuck-for=5s", only=("read_logs",), keep=3)
    files.save(kept)
    files.save(Schedule(name="b", every_s=60))
    files.note_run("b", 1234.5)
    assert files.load().schedules == (kept, Schedule(name="b", every_s=60))
    assert files.load().ran_at == (("b", 1234.5),)
    assert sorted(path.name for path in folder.iterdir()) == ["a.json", "b.json", "b.ran"]
    whole = (folder / "a.json").read_text()
    (folder / ".a.json.0123.tmp").write_text(whole)
    for damaged, told in (
        (whole[:40], "it is no JSON: "),
        ("[]", "it has other fields than a schedule"),
        ("[" * 60_000, "it is no JSON: "),
        (json.dumps({"name": "a", "every_s": True}), "its every_s is of another kind: 'True'"),
        (json.dumps({"name": "a", "every_s": 60, "sh": "rm"}), "it has other fields than a schedule"),
        (json.dumps({"name": "c", "every_s": 60}), "it is of a schedule called 'c'"),
        (json.dumps({"name": "a", "when": "stuck"}), "when: 'stuck': there is no 'stuck'"),
        # Of these no answer to anybody could be made.
        (json.dumps({"name": "a", "every_s": 60, "note": "\ud800"}), "it has half of a character in it"),
        (json.dumps({"name": "a", "every_s": 60, "only": ["\udfff"]}), "it has half of a character in it"),
    ):
        (folder / "a.json").write_text(damaged)
        loaded = files.load()
        assert [schedule.name for schedule in loaded.schedules] == ["b"]
        assert [sentence.startswith(f"{folder}/a.json: {told}") for sentence in loaded.damage] == [True], loaded.damage
        # Whoever mends it finds it.
        assert (folder / "a.json").read_text() == damaged
    assert not list(folder.glob("*.tmp"))
    (folder / os.fsdecode(b"\xff.json")).write_text("{}")
    assert files.load().damage[-1].encode().endswith(b"\\xff.json: it has other fields than a schedule")
    # What others keep there is theirs.
    (folder / "theirs.tmp").write_text("x")
    files.save(Schedule(name="c", every_s=60, note="\U0001f600"))
    assert files.load().schedules[-1].note == "\U0001f600"
    assert (folder / "theirs.tmp").read_text() == "x"
    files.remove("c")
    for damaged in ("nan", "inf", "-1", "1e300", "", "\0"):
        (folder / "b.ran").write_text(damaged)
        assert files.load().ran_at == ()
    files.remove("b")
    files.remove("b")
    assert files.load().schedules == files.load().ran_at == ()


class Canned:
    """Captures in no time, or when told to."""

    def __init__(self) -> None:
        self.specs: list[CaptureSpec] = []
        self.urgencies: list[Urgency] = []
        self.error: Exception | None = None
        self.go = asyncio.Event()
        self.go.set()

    async def uncalled(self, spec: CaptureSpec, urgency: Urgency) -> tuple[Captured, str]:
        self.specs.append(spec)
        self.urgencies.append(urgency)
        await self.go.wait()
        if self.error is not None:
            raise self.error
        return Captured(snapshot_id=f"gpu-07-{len(self.specs)}", data=b"", digest=b""), ""


class Agent:
    def __init__(self, folder: Path, *configured: Schedule) -> None:
        self.wall, self.now = 1_000_000.0, 50.0
        self.canned = Canned()
        self.schedules = Schedules(
            captures=self.canned,
            store=None,
            files=Files(str(folder / "schedules")),
            configured=configured,
            collectors=("read_logs",),
            logger=make_logger(io.StringIO()),
            audit=Audit(make_logger(io.StringIO())),
            clock=Clock(monotonic=lambda: self.now, wall=lambda: self.wall),
            uniform=lambda low, high: (low + high) / 2,
        )

    def pass_s(self, seconds: float) -> None:
        self.wall += seconds
        self.now += seconds
        self.schedules.tick()

    async def settled(self, name: str = "a") -> None:
        entry = {each.schedule.name: each for each in self.schedules.listed()}[name]
        await eventually(lambda: entry.busy is None)

    def triggers(self) -> list[str]:
        return [spec.trigger for spec in self.canned.specs]


@asynccontextmanager
async def running(folder: Path, *configured: Schedule) -> AsyncIterator[Agent]:
    agent = Agent(folder, *configured)
    task = asyncio.ensure_future(agent.schedules.run())
    await agent.schedules._until_loaded()
    try:
        yield agent
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_an_interval_with_jitter(tmp_path: Path) -> None:
    async with running(tmp_path, Schedule(name="a", every_s=60, jitter_s=20)) as agent:
        agent.pass_s(69)
        assert agent.triggers() == []
        agent.pass_s(1)
        await agent.settled()
        assert agent.triggers() == ["schedule a"]
        (entry,) = agent.schedules.listed()
        assert (entry.last, entry.ran_at, entry.due) == ("gpu-07-1", agent.wall, agent.wall + 70)
        assert agent.canned.specs[0].schedule == "a"
        assert agent.canned.specs[0].triggered is None


async def test_a_capture_that_still_runs_is_not_begun_twice(tmp_path: Path) -> None:
    async with running(tmp_path, Schedule(name="a", every_s=10)) as agent:
        agent.canned.go.clear()
        for _ in range(5):
            agent.pass_s(10)
            await asyncio.sleep(0)
        assert len(agent.canned.specs) == 1
        agent.canned.go.set()
        await agent.settled()


async def test_what_was_missed(tmp_path: Path) -> None:
    folder = Files(str(tmp_path / "schedules"))
    for name in ("a", "b"):
        folder.note_run(name, 1_000_000.0 - 5000)
    both = Schedule(name="a", every_s=3600), Schedule(name="b", every_s=3600, missed="once")
    async with running(tmp_path, *both) as agent:
        agent.schedules.tick()
        await agent.settled("b")
        assert agent.triggers() == ["schedule b"]
        agent.pass_s(2200)
        await agent.settled("a")
        assert agent.triggers() == ["schedule b", "schedule a"]
        # The host slept.
        agent.pass_s(36_000)
        await agent.settled("b")
        assert agent.triggers()[2:] == ["schedule b"]


async def test_a_clock_that_was_set_back_does_not_silence_a_schedule(tmp_path: Path) -> None:
    async with running(tmp_path, Schedule(name="a", every_s=60)) as agent:
        agent.wall -= 86_400
        agent.schedules.tick()
        agent.pass_s(60)
        await agent.settled()
        assert agent.triggers() == ["schedule a"]


async def test_a_trigger_looks_three_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, Schedule(name="a", when="stuck-for=5s", only=("read_logs",), note="why")) as agent:
        pauses: list[float] = []

        async def no_pause(seconds: float, real: Callable[[float], object] = asyncio.sleep) -> None:
            if seconds > 1.0:
                pauses.append(seconds)
                agent.now += seconds
            await real(0.01)  # type: ignore[misc]

        monkeypatch.setattr(asyncio, "sleep", no_pause)
        assert agent.schedules.has_triggers()
        agent.schedules.on_values({"longest_wait_s": 4.9, "requests": 30.0}, 50.0)
        agent.schedules.on_values({"longest_wait_s": 5.0, "requests": 30.0}, 51.0)
        await agent.settled()
        assert pauses == [5.0, 25.0]
        assert agent.canned.urgencies == [Urgency.FIRST_LOOK, Urgency.PATIENT, Urgency.PATIENT]
        assert agent.triggers() == ["trigger stuck-for=5s"] * 3
        looks = [spec.triggered for spec in agent.canned.specs]
        assert [(each.look, each.looks) for each in looks if each is not None] == [(1, 3), (2, 3), (3, 3)]
        assert looks[0] is not None
        assert looks[0].expression == "longest_wait_s >= 5"
        assert looks[0].fired_at == "1970-01-12T13:46:40.000Z"
        assert looks[0].values == (("longest_wait_s", "5"), ("requests", "30"))
        assert (agent.canned.specs[0].only, agent.canned.specs[0].note) == (("read_logs",), "why")


async def test_of_triggers_that_fire_together_one_for_what_ended_is_first(tmp_path: Path) -> None:
    triggers = (
        Schedule(name="a", when="stuck-for=5s"),
        Schedule(name="b", when="exits + stopped > 0"),
        Schedule(name="c", when="requests > 0"),
    )
    async with running(tmp_path, *triggers) as agent:
        agent.canned.go.clear()
        agent.schedules.on_values({"longest_wait_s": 9.0, "requests": 30.0, "exits": 1.0, "stopped": 0.0}, 50.0)
        await eventually(lambda: len(agent.canned.specs) == 3)
    assert [spec.schedule for spec in agent.canned.specs] == ["b", "a", "c"]
    assert agent.canned.urgencies == [Urgency.PASSING, Urgency.FIRST_LOOK, Urgency.FIRST_LOOK]


async def test_a_trigger_does_not_count_the_time_that_nobody_saw(tmp_path: Path) -> None:
    async with running(tmp_path, Schedule(name="a", when="requests > 5", hold_s=10)) as agent:
        agent.schedules.on_values({"requests": 6.0}, agent.now)
        agent.pass_s(20)
        agent.schedules.on_values({"requests": 6.0}, agent.now)
        assert agent.triggers() == []


async def test_put_and_delete_stay(tmp_path: Path) -> None:
    async with running(tmp_path, Schedule(name="mine", every_s=60)) as agent:
        await agent.schedules.put(Schedule(name="a", every_s=60))
        await agent.schedules.put(Schedule(name="a", when="xid"))
        await agent.schedules.put(Schedule(name="b", cron="0 3 * * *"))
        with pytest.raises(BadRequestError, match="the schedule mine stands in the agent's configuration file"):
            await agent.schedules.put(Schedule(name="mine", every_s=61))
        with pytest.raises(BadRequestError, match="stands in the agent's configuration file"):
            await agent.schedules.delete("mine")
        with pytest.raises(UnknownScheduleError):
            await agent.schedules.delete("c")
        with pytest.raises(BadRequestError, match="there is no 'stuck'"):
            await agent.schedules.put(Schedule(name="c", when="stuck"))
        await agent.schedules.delete("b")
    (tmp_path / "schedules" / "d.json").write_text("{")
    async with running(tmp_path, Schedule(name="mine", every_s=60)) as agent:
        names = [(each.schedule.name, each.schedule.when, each.configured) for each in agent.schedules.listed()]
        assert names == [("a", "xid", False), ("mine", "", True)]
        assert [sentence.partition("/schedules/")[2][:20] for sentence in agent.schedules.damage] == [
            "d.json: it is no JSO"
        ]


async def test_a_capture_that_fails_is_told_and_the_schedule_goes_on(tmp_path: Path) -> None:
    async with running(tmp_path, Schedule(name="a", every_s=60)) as agent:
        errors: Sequence[Exception] = (LauncherDownError("the launcher is not there"), RuntimeError("broken"))
        for error, told in zip(errors, ("the launcher is not there", "RuntimeError('broken')"), strict=True):
            agent.canned.error = error
            agent.pass_s(60)
            await agent.settled()
            assert agent.schedules.listed()[0].last == told
        agent.canned.error = None
        agent.pass_s(60)
        await agent.settled()
        assert agent.schedules.listed()[0].last == "gpu-07-3"


async def test_a_schedule_of_no_collector_is_left_out(tmp_path: Path) -> None:
    agent = Agent(tmp_path, Schedule(name="a", every_s=60, only=("read_log",)))
    assert agent.schedules.damage == ("schedule a: there is no collector 'read_log'",)
    assert agent.schedules.listed() == ()
