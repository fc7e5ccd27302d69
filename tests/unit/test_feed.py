"""The feed between its workers: what it hands on, and what ends between two of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from freezeframe.agentd.collectors.contract import Collector
from freezeframe.agentd.host import Clock
from freezeframe.agentd.jobs import Job
from freezeframe.agentd.schedules.feed import Feed
from freezeframe.judge.model import Edge, Outcome, Process, RecorderState, Series, Snapshot
from tests.support.waiting import eventually

Role = Process.Role
ROUTER = Process(pid=2, role=Role.ROUTER, start_ticks=20, state="S")
ENGINE = Process(pid=3, role=Role.ENGINE_HTTP, start_ticks=30, state="S")
STRANGER = Process(pid=9, role=Role.ENGINE_HTTP, start_ticks=90, state="S")


class Known:
    def __init__(self, *processes: Process) -> None:
        self.processes = processes
        self.learnt: list[tuple[Process, ...]] = []

    def known(self) -> Sequence[Process]:
        return self.processes

    async def warm(self) -> None:
        if self.learnt:
            self.processes = self.learnt.pop(0)


class Canned:
    """Workers that hand over what a test tells them to."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.part: Callable[[Snapshot], None] = lambda _part: None
        self.end = asyncio.Event()

    async def run(
        self,
        collector: Collector,
        job: Job,
        *,
        on_part: Callable[[Snapshot], None],
        on_doing: Callable[[str, int], None],
    ) -> Outcome:
        self.jobs.append(job)
        self.part = on_part
        self.end.clear()
        await self.end.wait()
        return Outcome(collector=collector.name, status=Outcome.Status.OK)


class Fed:
    def __init__(self, *known: Process) -> None:
        self.now = 100.0
        self.workers, self.known = Canned(), Known(*known)
        self.feed = Feed(workers=self.workers, processes=self.known, clock=Clock(monotonic=lambda: self.now))
        self.wanted = True
        self.came: list[tuple[dict[str, float], dict[str, str]]] = []
        self.task = asyncio.ensure_future(self.feed.run(lambda: self.wanted, self._take))

    def _take(self, values: Mapping[str, float], now: float, told: Mapping[str, str]) -> None:
        assert now == self.now
        self.came.append((dict(values), dict(told)))

    async def job(self, number: int) -> tuple[int, ...]:
        await eventually(lambda: len(self.workers.jobs) == number)
        return tuple(target.pid for target in self.workers.jobs[-1].targets)

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def test_what_ends_within_a_job_and_between_two_of_them() -> None:
    fed = Fed(ROUTER, ENGINE, Process(pid=1, role=Role.CLIENT))
    assert await fed.job(1) == (2, 3)
    fed.workers.part(Snapshot(processes=(ROUTER, ENGINE)))
    gone = Process(pid=3, start_ticks=30, role=Role.ENGINE_HTTP, state="X")
    for _ in range(2):
        fed.workers.part(Snapshot(processes=(ROUTER, gone)))
    assert [(values["exits"], told) for values, told in fed.came] == [
        (0.0, {}), (1.0, {"ended": "engine-http 3"}), (0.0, {}),
    ]  # fmt: skip
    # The router goes while no worker looks, and nothing is known of it when the next one begins.
    fed.known.processes = ()
    fed.workers.end.set()
    assert await fed.job(2) == ()
    for _ in range(2):
        fed.workers.part(Snapshot())
    assert [(values.get("exits"), told) for values, told in fed.came[3:]] == [
        (1.0, {"ended": "router 2"}), (None, {}),
    ]  # fmt: skip
    await fed.stop()


async def test_a_new_process_of_the_path_is_learnt_and_looked_at() -> None:
    fed = Fed(ROUTER)
    fed.known.learnt = [(ROUTER, STRANGER)]
    assert await fed.job(1) == (2,)
    fed.workers.part(Snapshot(recorder=RecorderState(), edges=(Edge(client_pid=2, server_pid=9, owed=1),)))
    assert await fed.job(2) == (2, 9)
    await fed.stop()


async def test_nothing_is_asked_while_nobody_wants_it() -> None:
    fed = Fed(ROUTER)
    fed.wanted = False
    await asyncio.sleep(0)
    assert fed.workers.jobs == []
    await fed.stop()


async def test_values_become_series_and_grow_old() -> None:
    fed = Fed(ROUTER)
    await fed.job(1)
    for wait in (0.0, 4_000.0, 5_000.0):
        edge = Edge(client_pid=1, server_pid=2, owed=1, longest_wait_ms=wait, oldest_owed_age_ms=wait)
        fed.workers.part(Snapshot(recorder=RecorderState(), edges=(edge,)))
        fed.now += 1
    told = {series.subject: series for series in fed.feed.tell()}
    assert told["longest_wait_s"] == Series(
        kind="path", subject="longest_wait_s", values=(4.0, 5.0), last_nonzero_age_ms=0.0
    )
    assert fed.feed.values()["longest_wait_s"] == 5.0
    fed.now += 10
    assert fed.feed.values() == {}
    assert fed.feed.recorder() is None
    await fed.stop()
