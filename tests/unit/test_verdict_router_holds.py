from __future__ import annotations

from freezeframe.judge.model import Confidence, Verdict
from tests.support.scene import Scene

Code = Verdict.Code
Level = Confidence.Level


def queued(upstream: int, *, age_ms: float = 8_000) -> tuple[Scene, int]:
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 30, age_ms=age_ms)
    scene.owed(router, engine, upstream, age_ms=age_ms)
    return scene, router


def test_nothing_passed_on():
    scene, router = queued(0)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids, verdict.explains) == (Code.ROUTER_HOLDS, (router,), 30)
    assert verdict.confidence is Level.HIGH
    assert {r.hop for r in verdict.ruled_out} == {"client", "engine"}


def test_a_limit_lets_four_through():
    scene, _ = queued(4)
    verdict = scene.verdict()
    assert (verdict.code, verdict.explains, verdict.confidence) == (Code.ROUTER_HOLDS, 26, Level.MEDIUM)


def test_near_miss_all_passed_on():
    assert queued(30)[0].verdict().code is Code.UNDETERMINED


def test_near_miss_a_few_are_under_way():
    assert queued(28)[0].verdict().code is Code.UNDETERMINED


def test_near_miss_young():
    assert queued(0, age_ms=300)[0].verdict().code is Code.NOT_STUCK


def test_two_legs_are_one_request():
    scene = Scene()
    harness, router = scene.client(), scene.router()
    prefill, decode = scene.engine("prefill"), scene.engine("decode")
    scene.owed(harness, router, 30, age_ms=8_000)
    scene.owed(router, prefill, 15, age_ms=8_000)
    scene.owed(router, decode, 15, age_ms=8_000)
    verdict = scene.verdict()
    assert (verdict.code, verdict.explains) == (Code.ROUTER_HOLDS, 15)


def test_lookalike_one_connection_that_may_carry_many():
    scene, router = queued(0)
    engine = next(p for p in scene.processes.values() if p.role.name == "ENGINE_HTTP")
    scene.idle(router, engine.pid, 1, age_ms=40_000)
    assert scene.verdict().code is Code.UNDETERMINED


def test_unread_by_the_router_is_another_verdict():
    scene = Scene()
    harness, router, _ = scene.client(), scene.router(), scene.engine()
    scene.unread(harness, router, 30, age_ms=8_000)
    verdict = scene.verdict()
    assert (verdict.code, verdict.explains) == (Code.ROUTER_NOT_ACCEPTING, 30)
