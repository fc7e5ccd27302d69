from __future__ import annotations

from dataclasses import replace

import pytest

from freezeframe.judge.model import Confidence, Verdict
from tests.support.scene import Engine, Scene

Code = Verdict.Code
Level = Confidence.Level


def owing(count: int = 30) -> tuple[Scene, int, int, Engine]:
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, count, age_ms=8_000)
    return scene, harness, router, engine


def test_answers_that_the_router_does_not_read() -> None:
    scene, _, router, engine = owing()
    scene.answered_and_closed(router, engine, 30, age_ms=6_000)
    verdict = scene.verdict()
    assert (verdict.code, verdict.hop, verdict.holder_pids, verdict.confidence, verdict.explains) == (
        Code.ROUTER_LOST_REPLY,
        "router",
        (router,),
        Level.HIGH,
        30,
    )


def test_connections_that_the_engine_has_closed() -> None:
    scene, _, router, engine = owing(3)
    scene.answered_and_closed(router, engine, 3, age_ms=6_000)
    for number, socket in enumerate(scene.sockets):
        if socket.state == "CLOSE-WAIT":
            # Read, and kept open.
            scene.sockets[number] = replace(socket, recv_queue=0.0, recv_queue_after=0.0)
    found = [each for each in scene.conclude().findings if each.code is Code.ROUTER_LOST_REPLY]
    assert [(each.explains, each.confidence) for each in found] == [(3, Level.MEDIUM)]


@pytest.mark.parametrize("how", ["owed", "streams"])
def test_near_miss_an_engine_still_has_some(how: str) -> None:
    scene, _, router, engine = owing()
    scene.answered_and_closed(router, engine, 29, age_ms=6_000)
    if how == "owed":
        scene.owed(router, engine, 1, age_ms=6_000)
    else:
        scene.streams(router, engine)
    assert Code.ROUTER_LOST_REPLY not in {each.code for each in scene.conclude().findings}


def test_lookalike_nothing_is_open_upstream() -> None:
    scene, *_ = owing()
    assert Code.ROUTER_LOST_REPLY not in {each.code for each in scene.conclude().findings}


def test_lookalike_an_idle_pool() -> None:
    scene, _, router, engine = owing()
    scene.idle(router, engine, 30)
    assert Code.ROUTER_LOST_REPLY not in {each.code for each in scene.conclude().findings}
