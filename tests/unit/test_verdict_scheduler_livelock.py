from __future__ import annotations

import pytest

from freezeframe.judge.model import Confidence, Verdict
from tests.support.rank_scenes import ADMISSION, BATCH, IDLE, ROUND, ranked, switches
from tests.support.scene import Engine, Scene

Code = Verdict.Code


def livelocked(
    frames: object = ADMISSION,
    *,
    cpu_ms: float = 990,
    age_ms: float = 41_000,
    woke: int = 0,
    gauges_of_ms: float | None = None,
    **gauges: float,
) -> tuple[Scene, Engine]:
    scene, engine = ranked(frames, age_ms=age_ms)
    scene.state(engine.scheduler, "R", cpu_ms=cpu_ms)
    switches(scene, engine.scheduler, woke)
    scene.gauges(engine, age_ms=gauges_of_ms, **{"waiting": 30, **gauges})
    return scene, engine


def codes(scene: Scene) -> list[Verdict.Code]:
    return [finding.code for finding in scene.conclude().findings]


def test_a_scheduler_goes_round_in_its_admission():
    scene, engine = livelocked()
    verdict = scene.verdict()
    assert (verdict.code, verdict.hop) == (Code.SCHEDULER_LIVELOCK, "scheduler")
    assert (verdict.holder_pids, verdict.confidence) == ((engine.scheduler,), Confidence.Level.HIGH)
    assert verdict.explains == 30
    assert verdict.summary == (
        f"The scheduler (pid {engine.scheduler}) goes round in its admission and admits none of 30 waiting requests of "
        "harness.py (pid 101), oldest 41 s."
    )
    assert verdict.evidence[0].text == (
        f"pid {engine.scheduler} is in its admission at both looks (add_one_req), at 99 % of a core"
    )
    assert verdict.evidence[0].ref.startswith("ranks[0] python_threads[")


def test_it_need_not_be_the_same_stack():
    scene, engine = livelocked()
    scene.stack(engine.scheduler, ADMISSION, same=False)
    assert scene.verdict().code is Code.SCHEDULER_LIVELOCK


def test_on_a_busy_host_it_waits_for_a_core_and_never_sleeps():
    assert livelocked(cpu_ms=300)[0].verdict().code is Code.SCHEDULER_LIVELOCK


def test_a_request_that_came_since_waits_for_the_same():
    scene, engine = livelocked(waiting=31)
    scene.owed(scene.client("probe.py"), engine, 1, age_ms=4_000)
    assert (scene.verdict().code, scene.verdict().explains) == (Code.SCHEDULER_LIVELOCK, 31)


@pytest.mark.parametrize("frames", [IDLE, ROUND, BATCH], ids=["idle", "passes-by", "prefill"])
def test_lookalike_it_is_elsewhere(frames: object):
    assert Code.SCHEDULER_LIVELOCK not in codes(livelocked(frames)[0])


@pytest.mark.parametrize(
    "known",
    [{"cpu_ms": 300, "woke": 9}, {"age_ms": 4_000}, {"waiting": 0}, {"running": 1}, {"tokens": 64}],
    ids=["sleeps", "young", "no-queue", "runs", "tokens"],
)
def test_near_miss(known: dict[str, float]):
    assert Code.SCHEDULER_LIVELOCK not in codes(livelocked(**known)[0])


def test_near_miss_a_queue_of_other_requests():
    """What was written before the requests came says nothing of them."""
    assert Code.SCHEDULER_LIVELOCK in codes(livelocked(gauges_of_ms=20_000)[0])
    assert Code.SCHEDULER_LIVELOCK not in codes(livelocked(gauges_of_ms=30_000, age_ms=25_000)[0])


def test_near_miss_an_answer_moves():
    scene, engine = livelocked()
    scene.streams("10.0.0.9", engine, 1)
    assert Code.SCHEDULER_LIVELOCK not in codes(scene)


@pytest.mark.parametrize("collector", ["snapshot_python_stacks", "sample_metrics", "snapshot_processes"])
def test_without_its_evidence_nothing_is_claimed(collector: str):
    assert Code.SCHEDULER_LIVELOCK not in codes(livelocked()[0].lose(collector))
