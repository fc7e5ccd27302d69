from __future__ import annotations

from freezeframe.judge.model import Confidence, Verdict
from tests.support.scene import Scene

Code = Verdict.Code
Level = Confidence.Level


def limited(upstream: int = 4, **router_fields: object) -> tuple[Scene, int]:
    scene = Scene()
    harness, engine = scene.client(), scene.engine()
    router = scene.router(product="smg", **router_fields)
    scene.owed(harness, router, 30, age_ms=8_000)
    scene.owed(router, engine, upstream, age_ms=8_000)
    scene.gauges(engine, running=upstream)
    return scene, router


def test_its_queue_is_told_by_a_gauge():
    scene, router = limited()
    scene.metric(router, "smg_admission_queue_depth", 26)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids, verdict.explains) == (Code.ROUTER_QUEUE, (router,), 26)
    assert verdict.confidence is Level.HIGH
    assert [f.code for f in scene.conclude().findings] == [Code.ROUTER_QUEUE]


def test_as_many_are_under_way_as_its_flags_allow():
    scene, _ = limited(argv=("smg", "launch", "--max-concurrent-requests", "4"))
    verdict = scene.verdict()
    assert (verdict.code, verdict.confidence) == (Code.ROUTER_QUEUE, Level.MEDIUM)


def test_near_miss_the_limit_is_not_reached():
    scene, _ = limited(argv=("smg", "launch", "--max-concurrent-requests", "64"))
    assert scene.verdict().code is Code.ROUTER_HOLDS


def test_near_miss_all_passed_on():
    scene, router = limited(upstream=30)
    scene.metric(router, "smg_admission_queue_depth", 26)
    assert scene.verdict().code is Code.UNDETERMINED


def test_lookalike_an_empty_queue():
    scene, router = limited()
    scene.metric(router, "smg_admission_queue_depth", 0)
    assert scene.verdict().code is Code.ROUTER_HOLDS
