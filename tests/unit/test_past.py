from __future__ import annotations

import math

from freezeframe.agentd.host import Clock
from freezeframe.agentd.past import Past
from freezeframe.judge.model import Gpu, KernelEvent, Metric, Series, Snapshot


class Time:
    def __init__(self) -> None:
        self.now = 100.0
        self.past = Past(clock=Clock(monotonic=lambda: self.now))

    def second(self, *metrics: Metric, gpus: tuple[Gpu, ...] = ()) -> None:
        self.past.take(Snapshot(metrics=metrics, gpus=gpus))
        self.past.step()
        self.now += 1.0


def told(series: tuple[Series, ...]) -> dict[tuple[str, str, int | None], list[float]]:
    return {(each.kind, each.subject, each.pid): list(each.values) for each in series}


def running(value: float, age_ms: float = 10.0, rank: str = "0") -> Metric:
    return Metric(name="sglang:num_running_reqs", value=value, age_ms=age_ms, labels=(("dp_rank", rank),), pid=7)


def test_gauges_add_up_over_ranks_and_a_frozen_one_has_no_value() -> None:
    time = Time()
    time.second(running(30), running(2, rank="1"))
    time.second(running(31), running(0, rank="1"))
    for _ in range(3):
        time.second(running(31, 36_000))
    ((key, values),) = told(time.past.tell(())).items()
    assert key == ("gauge", "sglang:num_running_reqs", 7)
    # For two seconds a value stands for one that comes late.
    assert values[:4] == [32.0, 31.0, 31.0, 31.0]
    assert math.isnan(values[4])


def test_counters_become_rates() -> None:
    time = Time()
    for total in (1000, 1053, 1053):
        time.second(Metric(name="sglang:generation_tokens_total", value=total, pid=7))
    (series,) = time.past.tell(())
    assert (series.kind, series.values, series.last_nonzero_age_ms) == ("tokens", (53.0, 0.0), 1000.0)


def test_use_and_power_of_each_gpu() -> None:
    time = Time()
    time.second(gpus=(Gpu(index=0, utilization_percent=97.0, power_watts=120.5), Gpu(index=1, error="lost")))
    assert told(time.past.tell(())) == {("gpu use", "GPU 0", None): [97.0], ("gpu power", "GPU 0", None): [120.5]}


def test_xids_stand_at_their_seconds() -> None:
    events = (
        KernelEvent(kind="xid", code=79, device="0000:04:00", age_ms=2_400.0),
        KernelEvent(kind="xid", code=79, device="0000:04:00", age_ms=2_600.0),
        KernelEvent(kind="xid", code=79, device="0000:04:00", age_ms=4_100.0),
        KernelEvent(kind="xid", code=13, device="0000:05:00", age_ms=3_600_000.0),
        KernelEvent(kind="oom", age_ms=100.0),
    )
    (series,) = Past().tell(events)
    assert (series.kind, series.subject, series.last_nonzero_age_ms) == ("kernel", "xid 79 0000:04:00", 2000.0)
    assert series.values == (1.0, 0.0, 2.0, 0.0, 0.0)


def test_what_tells_nothing_of_the_past_is_not_kept() -> None:
    time = Time()
    time.second(Metric(name="sglang:token_usage", value=0.5, pid=7), Metric(name="sglang:num_queue_reqs", value=0.0))
    assert time.past.tell(()) == ()
