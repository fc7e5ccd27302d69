"""The past of what the recorder does not see: numbers of engines, use and power of GPUs, Xids.

The recorder reads nothing that can block, so workers sample these, one for each kind, over and over; here what they
hand over becomes one value a second, on the time line of the recorder's own series.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Sequence
from typing import Protocol

from freezeframe.agentd.collectors.contract import Collector
from freezeframe.agentd.engine import Runs, as_target
from freezeframe.agentd.host import Clock
from freezeframe.agentd.jobs import Job
from freezeframe.agentd.recorder.history import INTERVAL_S, SAMPLES, History, Key
from freezeframe.judge.correlate.gauges import COUNTERS, QUEUES
from freezeframe.judge.correlate.thresholds import GAUGE_STALE_MS
from freezeframe.judge.model import KernelEvent, Metric, Outcome, Process, Series, Snapshot

_INTERVAL_MS = INTERVAL_S * 1000.0
# How long one worker goes on: then the next one finds the engines that there are.
_JOB_MS = 30_000.0
# Until it is asked again for what is not there, and for what has just ended or may come.
_LATER_S, _SOON_S = 300.0, 30.0
# Until the agent knows the processes of the host. To find the engines among thousands takes some ten milliseconds.
_STARTING_S = 1.0
# A value that was not handed over for so long is none.
_KEPT_S = 2.5


class Knows(Protocol):
    """What knows the processes of the host (`agentd.engine.Engine`)."""

    def known(self) -> Sequence[Process]:
        """Processes with the roles that their names give them."""


class Past:
    """Samples for as long as `run` runs."""

    def __init__(self, *, clock: Clock = Clock()) -> None:  # noqa: B008 - frozen
        """Start empty."""
        self._clock = clock
        self._history = History()
        # The last value of each series and when it came.
        self._last: dict[Key, tuple[float, float]] = {}
        # Counters, with when they were read.
        self._counted: dict[Key, tuple[float, float]] = {}
        self._next_job = 0

    async def run(self, workers: Runs, processes: Knows, collectors: Iterable[Collector]) -> None:
        """Sample until cancelled."""
        await asyncio.gather(self._keep(), *(self._follow(workers, processes, each) for each in collectors))

    async def _follow(self, workers: Runs, processes: Knows, collector: Collector) -> None:
        while True:
            known = processes.known() if collector.wants else ()
            pause_s = _SOON_S if known or not collector.wants else _STARTING_S
            targets = tuple(map(as_target, known))
            targets = tuple(each for each in targets if collector.wants is not None and collector.wants(each))
            if targets or collector.wants is None:
                self._next_job += 1
                job = Job(job_id=self._next_job, collector=collector.name, targets=targets, deadline_ms=_JOB_MS)
                outcome = await workers.run(collector, job, on_part=self.take, on_doing=lambda _what, _done: None)
                if outcome.status is Outcome.Status.OK:
                    pause_s = 0.0
                elif outcome.status in (Outcome.Status.SKIPPED, Outcome.Status.UNAVAILABLE) and not targets:
                    pause_s = _LATER_S
            await asyncio.sleep(pause_s)

    async def _keep(self) -> None:
        while True:
            self.step()
            await asyncio.sleep(INTERVAL_S)

    def step(self) -> None:
        """Keep what is known now as the sample of this second."""
        now = self._clock.monotonic()
        self._last = {key: entry for key, entry in self._last.items() if now - entry[0] <= _KEPT_S}
        self._history.add({key: value for key, (_, value) in self._last.items()})

    def take(self, part: Snapshot) -> None:
        """Take what a worker handed over."""
        now = self._clock.monotonic()
        sums: dict[Key, float] = {}
        for metric in part.metrics:
            key = _key(metric)
            if key is not None:
                sums[key] = sums.get(key, 0.0) + metric.value
        for key, value in sums.items():
            if key.kind == "tokens":
                at, before = self._counted.get(key, (now, value))
                self._counted[key] = now, value
                if now > at:
                    self._last[key] = now, max(0.0, value - before) / (now - at)
            else:
                self._last[key] = now, value
        for gpu in part.gpus:
            for kind, known in (("gpu use", gpu.utilization_percent), ("gpu power", gpu.power_watts)):
                if known is not None:
                    self._last[Key(kind, f"GPU {gpu.index}")] = now, known

    def tell(self, events: Iterable[KernelEvent]) -> tuple[Series, ...]:
        """All series, as a snapshot has them, and those of the kernel's events."""
        sampled = tuple(
            Series(
                kind=told.key.kind,
                subject=told.key.subject,
                pid=told.key.pid or None,
                values=tuple(round(value, 1) for value in told.values),
                last_nonzero_age_ms=None if told.last_nonzero_s is None else told.last_nonzero_s * 1000.0,
            )
            for told in self._history.tell()
        )
        return (*sampled, *_in_time(events))


def _key(metric: Metric) -> Key | None:
    """Of which series it is a part; None where it is of none, or was written too long ago to tell of now."""
    if metric.age_ms is not None and metric.age_ms > GAUGE_STALE_MS:
        return None
    if metric.name in QUEUES:
        return Key("gauge", metric.name, metric.pid)
    return Key("tokens", metric.name, metric.pid) if metric.name in COUNTERS else None


def _in_time(events: Iterable[KernelEvent]) -> tuple[Series, ...]:
    """Xids of the kernel's log as series: how many of each number and device in each second."""
    ages: dict[str, list[int]] = {}
    for event in events:
        second = math.floor(event.age_ms / _INTERVAL_MS)
        if event.kind in ("xid", "sxid") and second < SAMPLES:
            ages.setdefault(f"{event.kind} {event.code} {event.device}".strip(), []).append(second)
    return tuple(
        Series(
            kind="kernel",
            subject=subject,
            values=tuple(float(seconds.count(ago)) for ago in range(max(seconds), -1, -1)),
            last_nonzero_age_ms=min(seconds) * _INTERVAL_MS,
        )
        for subject, seconds in sorted(ages.items())
    )
