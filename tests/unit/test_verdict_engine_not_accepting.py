from __future__ import annotations

from freezeframe.judge.model import Confidence, Verdict
from freezeframe.judge.model.stacks import Frame
from tests.support.scene import LOOP_RESTS, Engine, Scene

Code = Verdict.Code


def full(window_ms: float = 1000.0) -> tuple[Scene, int, Engine, Engine]:
    scene = Scene(window_ms=window_ms)
    harness, router = scene.client(), scene.router()
    prefill, decode = scene.engine("prefill"), scene.engine("decode")
    scene.owed(harness, router, 30, age_ms=3_000)
    scene.owed(router, prefill, 30, age_ms=3_000)
    scene.unaccepted(router, decode, 30, age_ms=3_000)
    scene.gauges(prefill, bootstrap=30)
    scene.gauges(decode)
    return scene, router, prefill, decode


def test_full_accept_queue_and_resting_loop():
    for window_ms, level in ((1000.0, Confidence.Level.HIGH), (0.0, Confidence.Level.MEDIUM)):
        scene, _, _, decode = full(window_ms)
        verdict = scene.verdict()
        assert (verdict.code, verdict.hop, verdict.holder_pids) == (Code.ENGINE_NOT_ACCEPTING, "decode", (decode.http,))
        assert (verdict.explains, verdict.confidence) == (30, level)


def test_near_miss_the_loop_is_blocked():
    scene, _, _, decode = full()
    scene.stack(decode.http, (Frame(function="encode", file="tokenizer.py", line=7), *LOOP_RESTS))
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids) == (Code.ENGINE_HTTP_BLOCKED, (decode.http,))


def test_near_miss_without_its_stack():
    scene, *_ = full()
    assert scene.lose("snapshot_python_stacks").verdict().code is Code.UNDETERMINED


def test_near_miss_the_queue_drains():
    scene, _, _, decode = full()
    scene.backlog(decode, 0, after=3)
    assert scene.verdict().code is Code.UNDETERMINED


def test_lookalike_an_engine_that_listens_and_still_loads():
    scene, _, _, decode = full()
    scene.stack(decode.http, (Frame(function="load_model", file="loader.py", line=9),))
    assert scene.verdict().code is Code.UNDETERMINED
