from __future__ import annotations

from freezeframe.judge.model import Verdict
from tests.support.scene import Scene

Code = Verdict.Code


def arriving(**fields: object) -> tuple[Scene, int, int]:
    scene = Scene()
    harness, router, _ = scene.client(), scene.router(**fields), scene.engine()
    return scene, harness, router


def test_accept_queue_that_does_not_drain():
    scene, harness, router = arriving()
    scene.unaccepted(harness, router, 5, age_ms=4_000)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids, verdict.explains) == (Code.ROUTER_NOT_ACCEPTING, (router,), 5)
    assert verdict.evidence[0].text == "accept queue of 127.0.0.1:30000: 5 of 4096, 5 at the second look"


def test_near_miss_a_burst():
    scene, harness, router = arriving()
    scene.unaccepted(harness, router, 30, age_ms=50)
    assert scene.verdict().code is Code.NOT_STUCK


def test_near_miss_a_router_that_has_just_started():
    scene, harness, router = arriving()
    scene.unaccepted(harness, router, 5, age_ms=4_000)
    scene.change(router, age_ms=5_000)
    assert scene.verdict().code is Code.UNDETERMINED


def test_lookalike_unread_bytes_while_others_are_served():
    scene, harness, router = arriving()
    scene.unread(harness, router, 1, age_ms=4_000)
    scene.streams(harness, router, 10)
    scene.streams(router, scene.engine(), 10)
    assert scene.verdict().code is Code.NOT_STUCK


def test_lookalike_idle_router():
    scene, harness, router = arriving()
    scene.idle(harness, router, 30)
    assert scene.verdict().code is Code.IDLE
