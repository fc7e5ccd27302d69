from __future__ import annotations

from dataclasses import replace

from freezeframe.judge.model import Confidence, Verdict
from tests.support.scene import Scene

Code = Verdict.Code


def lost(**fields: object) -> Scene:
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    scene.owed("10.0.0.9", router, 1, age_ms=100)
    scene.owed(scene.client(), router, 4, age_ms=30_000)
    scene.owed(router, engine, 4, age_ms=30_000)
    stalled = {"unacked": 3, "retransmits_now": 4, "last_ack_age_ms": 12_000, "retransmits_delta": 1}
    # The router's connections lead to another host.
    kept = []
    for socket in scene.sockets:
        if socket.pid == engine.http and socket.state != "LISTEN":
            continue
        if socket.pid == router and socket.peer_pid == engine.http:
            kept.append(replace(socket, peer_pid=None, remote="10.0.0.7:30000", **{**stalled, **fields}))
        else:
            kept.append(socket)
    scene.sockets = kept
    return scene


def test_unacknowledged_and_sent_again():
    verdict = lost().verdict()
    assert (verdict.code, verdict.hop, verdict.holder_pids) == (Code.NETWORK_STALLED, "network", ())
    assert (verdict.holder_address, verdict.explains) == ("10.0.0.7", 4)
    assert verdict.confidence is Confidence.Level.HIGH
    assert "10.0.0.7 does not answer: 4 connections" in verdict.summary


def test_near_miss_one_retransmission():
    assert lost(retransmits_now=1).verdict().code is Code.UNDETERMINED


def test_near_miss_acknowledged_of_late():
    assert lost(last_ack_age_ms=200.0).verdict().code is Code.UNDETERMINED


def test_lookalike_a_peer_that_closed_its_window():
    assert lost(peer_window_bytes=0.0).verdict().code is Code.UNDETERMINED


def test_connect_without_an_answer():
    scene = lost(state="SYN-SENT", last_in_age_ms=None, last_out_age_ms=None, retransmits_now=3)
    verdict = scene.verdict()
    assert verdict.code is Code.NETWORK_STALLED
    assert "get no answer to their connect" in verdict.summary
