from __future__ import annotations

import pytest

from freezeframe.judge.model import Confidence, Metric, Verdict
from tests.support.scene import Engine, Scene

Code = Verdict.Code
Level = Confidence.Level


def silent(*, age_ms: float = 3_000, window_ms: float = 1000.0, gauges: bool = True) -> tuple[Scene, int, Engine]:
    scene = Scene(window_ms=window_ms)
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 30, age_ms=age_ms)
    scene.owed(router, engine, 30, age_ms=age_ms)
    if gauges:
        scene.gauges(engine)
    return scene, router, engine


def pair(**decode_gauges: float) -> tuple[Scene, int, Engine, Engine]:
    scene = Scene()
    harness, router = scene.client(), scene.router()
    prefill, decode = scene.engine("prefill"), scene.engine("decode")
    scene.owed(harness, router, 30, age_ms=3_000)
    scene.owed(router, decode, 30, age_ms=3_000)
    scene.gauges(decode, **decode_gauges)
    return scene, router, prefill, decode


def tell(scene: Scene, engine: Engine, age_ms: float) -> None:
    """The scheduler's numbers with their time, as SGLang writes them each second."""
    scene.metrics.append(Metric(name="load_num_running_reqs", value=0, pid=engine.http, age_ms=age_ms))


def test_read_and_not_worked_on():
    scene, _, engine = silent()
    verdict = scene.verdict()
    assert (verdict.code, verdict.hop, verdict.holder_pids) == (Code.ENGINE_HANDOFF, "engine", (engine.http,))
    assert (verdict.explains, verdict.confidence) == (30, Level.HIGH)
    assert {r.hop for r in verdict.ruled_out} == {"client", "router", "scheduler"}


@pytest.mark.parametrize(("product", "code"), [("sglang", Code.ENGINE_HANDOFF), ("vllm", Code.UNDETERMINED)])
def test_a_core_of_vllm_that_rests_may_be_paused_and_keep_them(product, code):
    """It tells its numbers with what it computed, so 0 may be of before; SGLang keeps them in its HTTP process."""
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine(product=product)
    scene.owed(harness, router, 30, age_ms=12_000)
    scene.owed(router, engine, 30, age_ms=12_000)
    scene.gauges(engine)
    assert scene.verdict().code is code


def test_silent_decode_of_a_pair_while_prefill_waits_for_it():
    scene, router, prefill, decode = pair()
    scene.owed(router, prefill, 30, age_ms=3_000)
    scene.gauges(prefill, bootstrap=30)
    scene.wakes(prefill.scheduler, 45)
    verdict = scene.verdict()
    assert (verdict.code, verdict.hop, verdict.holder_pids) == (Code.ENGINE_HANDOFF, "decode", (decode.http,))


def test_silent_prefill_of_a_pair_while_decode_waits_for_it():
    scene, router, prefill, decode = pair(prealloc=30)
    scene.owed(router, prefill, 30, age_ms=3_000)
    scene.gauges(prefill)
    scene.wakes(decode.scheduler, 45)
    verdict = scene.verdict()
    assert (verdict.code, verdict.hop, verdict.holder_pids) == (Code.ENGINE_HANDOFF, "prefill", (prefill.http,))


def test_near_miss_queues_of_a_pair_that_may_be_those_of_a_moment_before():
    """What prefill kept before it became idle, and what decode had not before it got requests that it cannot start."""
    for age_ms, code in ((4_000, Code.UNDETERMINED), (60_000, Code.ENGINE_HANDOFF)):
        scene = Scene()
        harness, router = scene.client(), scene.router()
        prefill, decode = scene.engine("prefill"), scene.engine("decode")
        scene.owed(harness, router, 30, age_ms=age_ms)
        scene.owed(router, prefill, 30, age_ms=age_ms)
        scene.owed(router, decode, 30, age_ms=age_ms)
        scene.gauges(prefill, bootstrap=30)
        scene.gauges(decode)
        assert scene.verdict().code is code
        scene.wakes(decode.scheduler, 45)
        assert scene.verdict().code is Code.UNDETERMINED


def test_silent_decode_after_prefill_has_answered():
    scene, router, prefill, decode = pair()
    scene.answered_and_closed(router, prefill, 30, age_ms=2_500)
    scene.gauges(prefill)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids) == (Code.ENGINE_HANDOFF, (decode.http,))


def test_near_miss_both_sides_of_a_pair_say_that_they_have_nothing():
    scene, router, prefill, _ = pair()
    scene.owed(router, prefill, 30, age_ms=3_000)
    scene.gauges(prefill)
    assert scene.verdict().code is Code.UNDETERMINED


def test_near_miss_both_sides_of_a_pair_wait():
    scene, router, prefill, _ = pair(prealloc=30)
    scene.owed(router, prefill, 30, age_ms=3_000)
    scene.gauges(prefill, bootstrap=30)
    assert scene.verdict().code is Code.UNDETERMINED


def test_silent_decode_of_a_pair_by_the_loop_of_its_partner():
    # The numbers of a scheduler with a request in a disaggregation queue are not written.
    scene, router, prefill, decode = pair()
    scene.owed(router, prefill, 30, age_ms=3_000)
    scene.gauges(prefill)
    scene.wakes(prefill.scheduler, 45)
    scene.sleeps(decode.scheduler)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids) == (Code.ENGINE_HANDOFF, (decode.http,))
    scene.wakes(decode.scheduler, 45)
    assert scene.verdict().code is Code.UNDETERMINED


def test_gauges_of_a_scheduler_in_its_idle_sleep_are_old():
    scene, _, engine = silent(gauges=False)
    scene.gauges(engine, running=4, waiting=1)
    assert scene.verdict().code is Code.UNDETERMINED
    scene.sleeps(engine.scheduler)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids) == (Code.ENGINE_HANDOFF, (engine.http,))


def test_lookalike_a_long_prefill_whose_scheduler_does_not_rest():
    scene, _, engine = silent()
    scene.state(engine.scheduler, "R", cpu_ms=990)
    assert scene.verdict().code is Code.UNDETERMINED


@pytest.mark.parametrize(
    ("told_age_ms", "code"), [(1_000, Code.ENGINE_HANDOFF), (61_000, Code.UNDETERMINED), (None, Code.UNDETERMINED)]
)
def test_silence_longer_than_any_prefill_needs_no_resting_scheduler_but_one_that_has_told_since(told_age_ms, code):
    scene, _, engine = silent(age_ms=60_000)
    scene.state(engine.scheduler, "R", cpu_ms=990)
    if told_age_ms is not None:
        tell(scene, engine, told_age_ms)
    assert scene.verdict().code is code


def test_one_look_needs_that_silence():
    for age_ms, code in ((3_000, Code.UNDETERMINED), (60_000, Code.ENGINE_HANDOFF)):
        scene, _, engine = silent(window_ms=0, age_ms=age_ms)
        tell(scene, engine, 1_000)
        assert scene.verdict().code is code


def test_an_engine_without_numbers_is_less_sure_and_one_that_was_not_asked_is_not_accused():
    scene, _, engine = silent(age_ms=60_000, gauges=False)
    assert scene.verdict().code is Code.ENGINE_HOLDS
    scene.state(engine.scheduler, "R", cpu_ms=990)
    assert scene.verdict().code is Code.UNDETERMINED
    scene.state(engine.scheduler, "S", cpu_ms=0)
    verdict = scene.verdict()
    assert (verdict.code, verdict.confidence) == (Code.ENGINE_HOLDS, Level.LOW)
    assert scene.lose("sample_metrics").verdict().code is Code.UNDETERMINED


def test_tokens_of_a_stray_are_not_work_on_the_others():
    for age_ms, code in ((3_000, Code.UNDETERMINED), (60_000, Code.ENGINE_HANDOFF)):
        scene, router, engine = silent(age_ms=age_ms, gauges=False)
        stray = scene.client("stray.py")
        scene.streams(stray, router)
        scene.streams(router, engine)
        scene.gauges(engine, running=1, tokens=50)
        verdict = scene.verdict()
        assert verdict.code is code
        assert [(a.pid, a.stray, a.tokens_per_s) for a in verdict.attribution][1] == (stray, True, 50)


def test_lookalike_websockets_on_which_the_client_spoke_last():
    scene = Scene()
    scene.router()
    engine = scene.engine()
    scene.owed(scene.client(), engine, 4, age_ms=60_000)
    scene.gauges(engine)
    assert scene.verdict().code is Code.ENGINE_HANDOFF
    scene.metric(engine.http, "sglang:http_requests_active", 0, method="POST", endpoint="/v1/chat/completions")
    assert scene.verdict().code is Code.UNDETERMINED


def test_near_miss_a_scheduler_that_last_told_its_numbers_before_the_requests_came():
    for told_ms, code in ((19_000.0, Code.UNDETERMINED), (800.0, Code.ENGINE_HANDOFF)):
        scene, _, engine = silent(age_ms=17_000)
        scene.metrics.append(Metric(name="load_num_running_reqs", value=0.0, pid=engine.http, age_ms=told_ms))
        assert scene.verdict().code is code


def test_near_miss_a_prefill_whose_router_is_on_another_host():
    scene = Scene()
    prefill = scene.engine("prefill")
    scene.owed("10.0.0.2", prefill, 30, age_ms=41_000)
    scene.gauges(prefill)
    assert scene.verdict().code is Code.UNDETERMINED
