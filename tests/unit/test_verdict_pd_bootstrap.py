from __future__ import annotations

import pytest

from freezeframe.judge.model import Confidence, Verdict
from tests.support.pair_scenes import both_have_them
from tests.support.scene import Scene

Code = Verdict.Code
Level = Confidence.Level


def codes(scene: Scene) -> set[Verdict.Code]:
    return {finding.code for finding in scene.conclude().findings}


def test_both_have_them_and_the_handshake_does_not_come_about() -> None:
    scene, prefill, decode = both_have_them({"bootstrap": 30}, {"prealloc": 30})
    verdict = scene.verdict()
    assert (verdict.code, verdict.hop) == (Code.PD_BOOTSTRAP, "scheduler of prefill")
    assert verdict.holder_pids == (prefill.scheduler, decode.scheduler)
    assert (verdict.confidence, verdict.explains) == (Level.HIGH, 30)
    assert verdict.evidence[0].text == (
        f"prefill (pid {prefill.http}) says, 0.8 s ago: 30 in its bootstrap queue, nothing running or waiting"
    )
    assert verdict.summary == (
        "30 requests of harness.py (pid 101) stand in the handshake between prefill and decode "
        f"(pid {prefill.scheduler}, {decode.scheduler}), oldest 41 s: both have them, neither goes on."
    )


def test_numbers_of_some_seconds_ago_are_less_sure() -> None:
    scene, *_ = both_have_them({"bootstrap": 30}, {"transfer": 30}, gauge_age_ms=9_000)
    assert (scene.verdict().code, scene.verdict().confidence) == (Code.PD_BOOTSTRAP, Level.MEDIUM)


@pytest.mark.parametrize("gauge_age_ms", [None, 42_000.0, 34_000.0 + 8_000.0])
def test_lookalike_a_gauge_that_may_be_from_before(gauge_age_ms: float | None) -> None:
    scene, *_ = both_have_them({"bootstrap": 30}, {"prealloc": 30}, gauge_age_ms=gauge_age_ms)
    assert scene.verdict().code is Code.UNDETERMINED


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ({"bootstrap": 30}, {"prealloc": 2}),
        ({"bootstrap": 2}, {"prealloc": 30}),
        ({"bootstrap": 30, "running": 1}, {"prealloc": 30}),
        ({"bootstrap": 30}, {"prealloc": 30, "running": 1}),
        ({"bootstrap": 30}, {"prealloc": 30, "waiting": 5}),
        ({"bootstrap": 30, "tokens": 64}, {"prealloc": 30}),
        ({"bootstrap": 30}, {"prealloc": 30, "tokens": 64}),
    ],
    ids=["rooms-left-over", "few", "prefill-runs", "decode-runs", "decode-queues", "prefill-counts", "decode-counts"],
)
def test_near_misses(prefill: dict[str, float], decode: dict[str, float]) -> None:
    scene, *_ = both_have_them(prefill, decode)
    assert not codes(scene) & {Code.PD_BOOTSTRAP, Code.PD_TRANSFER}


def test_near_miss_young_requests() -> None:
    scene, *_ = both_have_them({"bootstrap": 30}, {"prealloc": 30}, age_ms=4_000)
    assert Code.PD_BOOTSTRAP not in codes(scene)


def test_lookalike_decode_keeps_them_in_its_http_layer() -> None:
    scene, _, decode = both_have_them({"bootstrap": 30}, {})
    scene.sleeps(decode.scheduler)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids) == (Code.ENGINE_HANDOFF, (decode.http,))


def test_lookalike_on_a_busy_host_its_loop_turns_so_slowly_that_it_seems_to_sleep() -> None:
    """SGLang's idle sleep has the same frames; what it said within the window speaks against it."""
    scene, prefill, _ = both_have_them({"bootstrap": 30}, {"prealloc": 30})
    scene.sleeps(prefill.scheduler)
    assert scene.verdict().code is Code.PD_BOOTSTRAP
    scene, prefill, _ = both_have_them({"bootstrap": 30}, {"prealloc": 30}, gauge_age_ms=4_000)
    scene.sleeps(prefill.scheduler)
    assert Code.PD_BOOTSTRAP not in codes(scene)


def test_lookalike_a_stopped_scheduler() -> None:
    scene, _, decode = both_have_them({"bootstrap": 30}, {"prealloc": 30})
    scene.state(decode.scheduler, "T")
    assert (scene.verdict().code, scene.verdict().holder_pids) == (Code.PROCESS_STOPPED, (decode.scheduler,))
    assert Code.PD_BOOTSTRAP not in codes(scene)


def test_lookalike_the_decode_leg_is_not_there() -> None:
    scene, prefill, _ = both_have_them({"bootstrap": 30}, {}, decode_owes=False)
    assert scene.verdict().code is Code.ROUTER_DUAL_LEG
    assert Code.PD_BOOTSTRAP not in codes(scene)
    assert prefill.scheduler not in scene.verdict().holder_pids
