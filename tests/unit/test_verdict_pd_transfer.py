from __future__ import annotations

import pytest

from freezeframe.judge.model import Confidence, Verdict
from tests.support.pair_scenes import both_have_them

Code = Verdict.Code
Level = Confidence.Level


def test_prefilled_and_nothing_arrives() -> None:
    scene, prefill, decode = both_have_them({"inflight": 30}, {"transfer": 30})
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids) == (Code.PD_TRANSFER, (prefill.scheduler, decode.scheduler))
    assert (verdict.confidence, verdict.explains) == (Level.HIGH, 30)
    assert "stand in the transfer between prefill and decode" in verdict.summary


def test_the_log_says_why() -> None:
    scene, _, decode = both_have_them({"inflight": 30}, {"transfer": 30})
    scene.log(decode.http, "bootstrap_reconnect", 7, "decode lost its connection to prefill")
    assert any("decode lost its connection to prefill" in each.text for each in scene.verdict().evidence)


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        ({}, {"transfer": 30}),
        ({"inflight": 30}, {}),
        ({"inflight": 3}, {"transfer": 30}),
        ({"inflight": 30, "running": 2}, {"transfer": 30}),
        ({"inflight": 30, "waiting": 2}, {"transfer": 30}),
        ({"inflight": 30}, {"transfer": 30, "tokens": 9}),
    ],
    ids=["decode-alone", "prefill-alone", "few", "prefill-runs", "prefill-queues", "decode-counts"],
)
def test_near_misses(prefill: dict[str, float], decode: dict[str, float]) -> None:
    scene, *_ = both_have_them(prefill, decode)
    assert Code.PD_TRANSFER not in {finding.code for finding in scene.conclude().findings}


def test_lookalike_a_young_transfer_and_one_without_ages() -> None:
    assert both_have_them({"inflight": 30}, {"transfer": 30}, age_ms=4_000)[0].verdict().code is Code.UNDETERMINED
    assert both_have_them({"inflight": 30}, {"transfer": 30}, gauge_age_ms=None)[0].verdict().code is Code.UNDETERMINED


def test_one_look_proves_nothing() -> None:
    scene, *_ = both_have_them({"inflight": 30}, {"transfer": 30}, window_ms=0.0)
    assert scene.verdict().code is not Code.PD_TRANSFER
