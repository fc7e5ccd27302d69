from __future__ import annotations

from dataclasses import replace

import pytest

from freezeframe.judge.model import Confidence, Verdict
from tests.support.rank_scenes import switches
from tests.support.scene import Engine, Scene

Code = Verdict.Code
Level = Confidence.Level


def pair(window_ms: float = 1000.0) -> tuple[Scene, int, int, Engine, Engine]:
    scene = Scene(window_ms=window_ms)
    return scene, scene.client("harness.py"), scene.router(), scene.engine("prefill"), scene.engine("decode")


def wedged(window_ms: float = 1000.0, *, age_ms: float = 41_000) -> tuple[Scene, int, int, Engine, Engine]:
    scene, harness, router, prefill, decode = pair(window_ms)
    scene.owed(harness, router, 30, age_ms=age_ms)
    scene.owed(router, prefill, 30, age_ms=age_ms)
    scene.gauges(prefill, bootstrap=30)
    scene.gauges(decode)
    return scene, harness, router, prefill, decode


def test_decode_gone_and_prefill_silent():
    scene, harness, router, prefill, _ = wedged()
    snapshot = scene.conclude()
    verdict = snapshot.verdict
    assert (verdict.code, verdict.hop, verdict.holder_pids) == (Code.ROUTER_DUAL_LEG, "router", (router,))
    assert verdict.confidence is Level.HIGH
    assert verdict.explains == 30
    assert verdict.summary == (
        f"The router (pid {router}) holds 30 requests of harness.py (pid {harness}), oldest 41 s: "
        "their prefill leg is open and silent, their decode leg is not there."
    )
    assert [r.hop for r in verdict.ruled_out] == ["client", "decode", "scheduler of decode"]
    assert [(a.client, a.pid, a.requests_in_flight, a.stray) for a in verdict.attribution] == [
        ("harness.py", harness, 30, False)
    ]
    assert [(h.name, h.in_flight, h.holds) for h in snapshot.hops] == [
        ("client", 30, False),
        ("router", 30, True),
        ("prefill", 30, False),
        ("scheduler of prefill", 30, False),
        ("decode", 0, False),
        ("scheduler of decode", 0, False),
    ]
    assert str(prefill.http) in " ".join(e.text for e in verdict.evidence)


def test_stray_is_named():
    scene, harness, router, _, decode = wedged()
    stray = scene.client("stray_client.py")
    scene.streams(stray, router, 1)
    scene.streams(router, decode, 1)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids, verdict.explains) == (Code.ROUTER_DUAL_LEG, (router,), 30)
    assert [(a.pid, a.stray, a.bytes_per_s) for a in verdict.attribution] == [(harness, False, 0), (stray, True, 9000)]


def test_decode_keep_alive_is_told_from_a_stream_by_its_numbers():
    scene, _, router, _, decode = wedged(age_ms=2_000)
    scene.idle(router, decode, 30, age_ms=1_900)
    assert scene.verdict().code is Code.ROUTER_DUAL_LEG
    assert scene.lose("sample_metrics").verdict().code is Code.UNDETERMINED


def test_a_few_keep_alives_hide_no_more_than_a_few_streams():
    scene, _, router, _, decode = wedged(age_ms=2_000)
    scene.idle(router, decode, 3, age_ms=1_900)
    verdict = scene.lose("sample_metrics").verdict()
    assert (verdict.code, verdict.explains, verdict.confidence) == (Code.ROUTER_DUAL_LEG, 27, Level.MEDIUM)


def test_a_scheduler_in_its_idle_sleep_tells_keep_alives_from_streams():
    scene, _, router, _, decode = wedged(age_ms=2_000)
    scene.idle(router, decode, 30, age_ms=1_900)
    scene.lose("sample_metrics")
    scene.sleeps(decode.scheduler)
    assert scene.verdict().code is Code.ROUTER_DUAL_LEG
    scene.wakes(decode.scheduler, 45)
    assert scene.verdict().code is Code.UNDETERMINED


def test_the_log_tells_keep_alives_from_streams():
    scene, _, router, _, decode = wedged(age_ms=2_000)
    scene.idle(router, decode, 30, age_ms=1_900)
    scene.lose("sample_metrics")
    scene.log(router, "router_decode_failed", 30)
    verdict = scene.verdict()
    assert (verdict.code, verdict.explains) == (Code.ROUTER_DUAL_LEG, 30)


def test_decode_answered_and_not_read():
    scene, _, router, _, decode = wedged()
    scene.answered_and_closed(router, decode, 30, age_ms=36_000)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids) == (Code.ROUTER_DUAL_LEG, (router,))
    assert "answered and not read" in verdict.summary


def test_one_look_is_enough_when_the_requests_are_old():
    assert wedged(0.0)[0].verdict().code is Code.ROUTER_DUAL_LEG
    young = wedged(0.0, age_ms=400)[0].verdict()
    assert young.code is Code.NOT_STUCK
    assert young.confidence is Level.LOW


def test_prefill_gone_and_decode_waits_for_it():
    scene, harness, router, prefill, decode = pair()
    scene.owed(harness, router, 30, age_ms=12_000)
    scene.owed(router, decode, 30, age_ms=12_000)
    scene.gauges(prefill)
    scene.gauges(decode, transfer=25)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids, verdict.confidence) == (Code.ROUTER_DUAL_LEG, (router,), Level.MEDIUM)


@pytest.mark.parametrize("window_ms", [0.0, 1000.0])
def test_lookalike_decode_hangs_with_all_of_them_in_its_queue(window_ms):
    scene, harness, router, prefill, decode = pair(window_ms)
    scene.owed(harness, router, 30, age_ms=12_000)
    scene.owed(router, decode, 30, age_ms=12_000)
    scene.gauges(prefill)
    scene.gauges(decode, transfer=25)
    scene.state(decode.scheduler, "S", cpu_ms=0)
    switches(scene, decode.scheduler, 0)
    assert Code.ROUTER_DUAL_LEG not in {finding.code for finding in scene.conclude().findings}


def test_lookalike_decodes_queue_is_from_before_these_requests():
    scene, harness, router, prefill, decode = pair()
    scene.owed(harness, router, 30, age_ms=12_000)
    scene.owed(router, decode, 30, age_ms=12_000)
    scene.gauges(prefill)
    scene.gauges(decode, transfer=25, age_ms=30_000)
    assert Code.ROUTER_DUAL_LEG not in {finding.code for finding in scene.conclude().findings}


def test_near_miss_both_legs_open():
    scene, harness, router, prefill, decode = pair()
    scene.owed(harness, router, 30, age_ms=3_000)
    scene.owed(router, prefill, 30, age_ms=3_000)
    scene.owed(router, decode, 30, age_ms=3_000)
    assert scene.verdict().code is Code.UNDETERMINED


def test_near_miss_decodes_turn():
    scene, harness, router, prefill, decode = pair()
    scene.owed(harness, router, 30, age_ms=3_000)
    scene.owed(router, decode, 30, age_ms=3_000)
    scene.gauges(prefill)
    scene.gauges(decode, running=30, tokens=900)
    assert scene.verdict().code is Code.NOT_STUCK


def test_near_miss_decodes_turn_under_load():
    """Prefill answers early in good order, and decode keeps what it took over until a place is free."""
    scene, harness, router, prefill, decode = pair()
    scene.owed(harness, router, 3, age_ms=1_500)
    scene.owed(router, decode, 3, age_ms=1_500)
    scene.gauges(prefill)
    scene.gauges(decode, running=18, transfer=3)
    assert scene.verdict().code is Code.ROUTER_DUAL_LEG
    # Decode was asked for its numbers once only.
    asked_once = [replace(m, delta=None) if m.pid == decode.http else m for m in scene.metrics]
    scene.metrics = asked_once
    assert scene.verdict().code is Code.UNDETERMINED
    scene.metrics = [replace(m, delta=60.0) if m.delta == 0 else m for m in asked_once]
    assert scene.verdict().code is Code.UNDETERMINED


def test_near_miss_requests_just_arrived():
    scene, harness, router, prefill, decode = pair()
    scene.owed(harness, router, 30, age_ms=100)
    scene.owed(router, prefill, 30, age_ms=100)
    scene.gauges(decode)
    assert scene.verdict().code is Code.NOT_STUCK


def test_lookalike_router_that_sends_decode_after_prefill():
    scene, _, router, _, _ = wedged(age_ms=4_000)
    scene.change(router, product="vllm-router")
    assert scene.verdict().code is Code.UNDETERMINED


def test_unseen_sockets_prove_nothing():
    scene, *_ = wedged()
    assert scene.lose("snapshot_sockets").verdict().code is Code.UNDETERMINED


def test_a_decode_engine_that_is_gone_is_known_by_the_routers_word():
    scene = Scene()
    harness, router, prefill = scene.client(), scene.router(), scene.engine("prefill")
    scene.owed(harness, router, 30, age_ms=5_000)
    scene.owed(router, prefill, 30, age_ms=5_000)
    assert scene.verdict().code is Code.UNDETERMINED
    scene.metric(router, "router_worker_healthy", 1, worker="http://127.0.0.1:31999", worker_type="decode")
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids, verdict.explains) == (Code.ROUTER_DUAL_LEG, (router,), 30)


def test_a_leg_that_the_network_keeps_from_beginning_is_not_lost():
    scene = Scene()
    harness, router = scene.client(), scene.router()
    prefill, decode = scene.engine("prefill"), scene.engine("decode")
    scene.owed(harness, router, 30, age_ms=8_000)
    scene.owed(router, prefill, 30, age_ms=8_000)
    scene.gauges(decode)
    assert scene.verdict().code is Code.ROUTER_DUAL_LEG
    scene.owed(router, decode, 1, age_ms=8_000)
    cut = {"unacked": 1, "retransmits_now": 4, "last_ack_age_ms": 8_000, "retransmits_delta": 1}
    last = len(scene.sockets) - 2
    scene.sockets[last] = replace(scene.sockets[last], **cut)
    assert [f.code for f in scene.conclude().findings] == [Code.NETWORK_STALLED]
