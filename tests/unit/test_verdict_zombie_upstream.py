from __future__ import annotations

from dataclasses import replace

import pytest

from freezeframe.judge.model import Confidence, Verdict
from tests.support.scene import Engine, Scene

Code = Verdict.Code
Level = Confidence.Level


def routed() -> tuple[Scene, int, Engine]:
    scene = Scene()
    return scene, scene.router(), scene.engine()


def test_owed_upstream_and_no_client():
    scene, router, engine = routed()
    scene.owed(router, engine, 30, age_ms=60_000)
    scene.gauges(engine, running=30)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids, verdict.confidence) == (Code.ZOMBIE_UPSTREAM, (router,), Level.HIGH)
    assert verdict.summary.startswith(f"The router (pid {router}) keeps 30 upstream requests without a client")


def test_streams_that_nobody_reads():
    scene, router, engine = routed()
    scene.idle(scene.client(), router, 1)
    scene.streams(router, engine, 5)
    verdict = scene.verdict()
    assert (verdict.code, verdict.confidence) == (Code.ZOMBIE_UPSTREAM, Level.MEDIUM)


def test_near_miss_the_clients_are_there():
    scene, router, engine = routed()
    scene.streams(scene.client(), router, 5)
    scene.streams(router, engine, 5)
    assert scene.verdict().code is Code.NOT_STUCK


def test_lookalike_health_checks():
    scene, router, engine = routed()
    scene.owed(router, engine, 1, age_ms=4_000)
    assert scene.verdict().code is Code.IDLE


def test_answers_that_stalled_and_that_nobody_waits_for():
    scene, router, engine = routed()
    scene.idle(router, engine, 30, age_ms=12_000)
    scene.gauges(engine, running=30)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids, verdict.confidence) == (Code.ZOMBIE_UPSTREAM, (router,), Level.HIGH)


def test_near_miss_an_engine_that_keeps_idle_connections_for_long():
    scene, router, engine = routed()
    scene.idle(router, engine, 30, age_ms=12_000)
    scene.gauges(engine)
    assert scene.verdict().code is Code.UNDETERMINED


def test_near_miss_one_more_than_the_clients_that_are_there():
    """Beside many that come and go the tables of two processes are not of one moment."""
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    scene.streams(scene.client(), router, 20)
    scene.streams(router, engine, 22)
    assert Code.ZOMBIE_UPSTREAM not in [finding.code for finding in scene.conclude().findings]
    scene.streams(router, engine, 8)
    assert Code.ZOMBIE_UPSTREAM in [finding.code for finding in scene.conclude().findings]


@pytest.mark.parametrize("gone", [("decode",), ("prefill", "decode")])
def test_near_miss_legs_of_pairs_whose_engines_are_not_seen(gone: tuple[str, ...]):
    scene = Scene()
    harness, router = scene.client(), scene.router()
    engines = {kind: scene.engine(kind) for kind in ("prefill", "decode")}
    scene.owed(harness, router, 30, age_ms=41_000)
    for engine in engines.values():
        scene.owed(router, engine, 30, age_ms=41_000)
    elsewhere = {engines[kind].http for kind in gone}
    scene.sockets = [
        replace(s, peer_pid=None if s.peer_pid in elsewhere else s.peer_pid)
        for s in scene.sockets
        if s.pid not in elsewhere
    ]
    for kind in gone:
        for pid in (engines[kind].http, engines[kind].scheduler, engines[kind].detokenizer):
            del scene.processes[pid]
    assert Code.ZOMBIE_UPSTREAM not in [finding.code for finding in scene.conclude().findings]
