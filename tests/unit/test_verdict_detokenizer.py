from __future__ import annotations

from freezeframe.judge.model import Confidence, Verdict
from tests.support.scene import Engine, Scene

Code = Verdict.Code
Level = Confidence.Level


def behind(*, cpu_ms: float = 990.0, tokens: float = 900.0, age_ms: float = 20_000.0) -> tuple[Scene, int, Engine]:
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 8, age_ms=age_ms)
    scene.owed(router, engine, 8, age_ms=age_ms)
    scene.gauges(engine, running=8.0, tokens=tokens)
    scene.state(engine.detokenizer, "R", cpu_ms=cpu_ms)
    return scene, router, engine


def codes(scene: Scene) -> set[Verdict.Code]:
    return {each.code for each in scene.conclude().findings}


def test_tokens_are_made_and_a_busy_detokenizer_lets_none_out() -> None:
    scene, _, engine = behind()
    verdict = scene.verdict()
    assert (verdict.code, verdict.hop, verdict.holder_pids, verdict.confidence, verdict.explains) == (
        Code.DETOKENIZER,
        "detokenizer",
        (engine.detokenizer,),
        Level.MEDIUM,
        8,
    )


def test_lookalike_answers_that_are_not_streamed() -> None:
    scene, *_ = behind(cpu_ms=60.0)
    assert Code.DETOKENIZER not in codes(scene)


def test_near_misses() -> None:
    assert Code.DETOKENIZER not in codes(behind(tokens=4.0)[0])
    assert Code.DETOKENIZER not in codes(behind(age_ms=3_000.0)[0])
    scene, _, engine = behind()
    scene.streams(scene.client("other.py"), engine)
    assert Code.DETOKENIZER not in codes(scene)
