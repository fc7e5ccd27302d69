"""A Report that keeps what a collector hands over, for tests that run a collector without a worker."""

from __future__ import annotations

import time
from collections.abc import Iterable

from freezeframe.agentd.collectors.contract import Collector
from freezeframe.agentd.gathered import Gathered
from freezeframe.agentd.host import Host
from freezeframe.agentd.host.procfs import ProcfsError, stat
from freezeframe.agentd.jobs import Caps, Job, Target
from freezeframe.judge.model import Process, Snapshot


class Kept:
    """Everything that one run handed over, in the order it came."""

    def __init__(self) -> None:
        self.did: list[str] = []
        self.parts: list[Snapshot] = []
        self.finished: list[int] = []
        self.missed_pids: dict[int, str] = {}
        self.partials: list[tuple[str, str]] = []

    def doing(self, what: str) -> None:
        self.did.append(what)

    def part(self, part: Snapshot) -> None:
        self.parts.append(part)

    def done(self, pid: int) -> None:
        self.finished.append(pid)

    def missed(self, pid: int, why: str) -> None:
        self.missed_pids[pid] = why

    def partial(self, detail: str, hint: str = "") -> None:
        self.partials.append((detail, hint))

    @property
    def snapshot(self) -> Snapshot:
        gathered = Gathered()
        for part in self.parts:
            gathered.add(part)
        return gathered.snapshot()

    def process(self, pid: int) -> Process:
        return next(process for process in self.snapshot.processes if process.pid == pid)


def run(
    collector: Collector,
    targets: Iterable[Target] = (),
    *,
    host: Host | None = None,
    window_ms: float = 0.0,
    deadline_ms: float = 20_000.0,
    caps: Caps | None = None,
) -> Kept:
    kept = Kept()
    job = Job(
        job_id=1,
        collector=collector.name,
        targets=tuple(targets),
        window_ms=window_ms,
        deadline_ms=deadline_ms,
        caps=caps or Caps(),
    )
    collector.collect(job, host or Host(), kept)
    return kept


def target(pid: int, **known: object) -> Target:
    try:
        start_ticks = stat(Host().proc(pid)).start_ticks
    except ProcfsError:
        start_ticks = 1
    return Target(pid=pid, start_ticks=start_ticks, **known)


def until(condition: object, *, seconds: float = 20.0) -> None:
    """Poll until `condition()` holds; fails the test when it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come about"
        time.sleep(0.005)
