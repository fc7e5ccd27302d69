"""watch_gauges: numbers of engines from the files of `read_gauges`, once a second until its deadline.

For the past of a snapshot. Reads, privilege and limits are those of `read_gauges`; histograms and summaries, and what a
file only mapped holds, are left out. Cost: some 0.2 ms a second for an engine.
"""

from __future__ import annotations

from dataclasses import replace

from freezeframe.agentd.collectors.contract import Collector, Report, SkippedError, Tier
from freezeframe.agentd.collectors.read_gauges import ROLES, Looks, find_sources
from freezeframe.agentd.host import Host
from freezeframe.agentd.jobs import Job
from freezeframe.judge.correlate.gauges import COUNTERS, QUEUES
from freezeframe.judge.model import Process, Snapshot

_EVERY_S = 1.0
# Of the job's time; then another worker takes over, with the processes that there are by then.
_SHARE = 0.9
_NAMES = QUEUES | COUNTERS
_LEFT_OUT = ("histogram", "summary")


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over Metric records every second: the queues, and the counters that tell of progress."""
    until = host.clock.monotonic() + _SHARE * job.deadline_ms / 1000.0
    # A process is told by its descriptors alone: nothing here waits for the memory of a target.
    lock_free = replace(job, targets=tuple(replace(target, python="") for target in job.targets))
    sources = [each for each in find_sources(lock_free, host, report) if each.kind not in _LEFT_OUT]
    if not sources:
        raise SkippedError("no engine here keeps its numbers in files")
    looks = Looks(sources, job, host, report)
    while host.clock.monotonic() < until:
        metrics = (metric for several in looks.read() for metric in several if metric.name in _NAMES)
        report.part(Snapshot(metrics=tuple(metrics)))
        report.doing("waiting for the second look")
        host.clock.sleep(_EVERY_S)


WATCH_GAUGES = Collector(
    name="watch_gauges",
    tier=Tier.OUTSIDE,
    collect=collect,
    wants=lambda target: target.role in ROLES and target.role is not Process.Role.ROUTER,
    resident=True,
)
