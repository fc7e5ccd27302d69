from __future__ import annotations

from freezeframe.judge.model import Confidence, Verdict
from tests.support.scene import Engine, Scene

Code = Verdict.Code


def queued(**gauges: float) -> tuple[Scene, int, Engine]:
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 30, age_ms=3_000)
    scene.owed(router, engine, 30, age_ms=3_000)
    scene.gauges(engine, **{"waiting": 30, **gauges})
    return scene, router, engine


def test_waiting_and_nothing_runs():
    scene, _, engine = queued()
    verdict = scene.verdict()
    assert (verdict.code, verdict.hop, verdict.holder_pids) == (Code.SCHEDULER_QUEUE, "scheduler", (engine.scheduler,))
    assert (verdict.confidence, verdict.explains) == (Confidence.Level.HIGH, 30)
    assert verdict.summary.startswith(f"The scheduler (pid {engine.scheduler}) keeps 30 requests of harness.py")


def test_prefill_of_a_pair_while_decode_waits():
    scene = Scene()
    harness, router = scene.client(), scene.router()
    prefill, decode = scene.engine("prefill"), scene.engine("decode")
    scene.owed(harness, router, 30, age_ms=3_000)
    scene.owed(router, prefill, 30, age_ms=3_000)
    scene.owed(router, decode, 30, age_ms=3_000)
    scene.gauges(prefill, waiting=30)
    scene.gauges(decode, transfer=30)
    verdict = scene.verdict()
    assert (verdict.code, verdict.hop, verdict.holder_pids) == (
        Code.SCHEDULER_QUEUE,
        "scheduler of prefill",
        (prefill.scheduler,),
    )


def test_near_miss_something_runs():
    assert queued(running=1)[0].verdict().code is Code.UNDETERMINED


def test_near_miss_tokens_are_counted():
    assert queued(tokens=400)[0].verdict().code is Code.NOT_STUCK


def test_lookalike_a_long_prefill_before_the_queue():
    scene, _, engine = queued()
    scene.state(engine.scheduler, "R", cpu_ms=990)
    assert scene.verdict().code is Code.UNDETERMINED


def test_without_numbers_nothing_is_claimed():
    scene, *_ = queued()
    assert scene.lose("sample_metrics").verdict().code is Code.UNDETERMINED


def test_stale_numbers_are_left_out():
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 30, age_ms=3_000)
    scene.owed(router, engine, 30, age_ms=3_000)
    scene.gauges(engine, waiting=30, age_ms=90_000)
    assert scene.verdict().code is not Code.SCHEDULER_QUEUE
