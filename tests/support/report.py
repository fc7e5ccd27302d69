"""Runs a collector in the test's own process, without a worker."""

from __future__ import annotations

import time
from collections.abc import Iterable

from freezeframe.agentd.collectors.contract import Collector
from freezeframe.agentd.host import Host
from freezeframe.agentd.host.procfs import ProcfsError, stat
from freezeframe.agentd.jobs import Caps, Job, Target
from tests.support.reports import KeptReport


def run(
    collector: Collector,
    targets: Iterable[Target] = (),
    *,
    host: Host | None = None,
    window_ms: float = 0.0,
    deadline_ms: float = 20_000.0,
    caps: Caps | None = None,
    allow_seize: bool = False,
) -> KeptReport:
    kept = KeptReport()
    job = Job(
        job_id=1,
        collector=collector.name,
        targets=tuple(targets),
        window_ms=window_ms,
        deadline_ms=deadline_ms,
        caps=caps or Caps(),
        allow_seize=allow_seize,
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
