"""CLIENT_NOT_READING and CLIENT_NOT_SENDING."""

from __future__ import annotations

from dataclasses import replace

import pytest

from freezeframe.judge.model import Confidence, Verdict
from freezeframe.judge.model.stacks import Frame
from tests.support.scene import Scene

Code = Verdict.Code
Level = Confidence.Level
POOL_WAIT = (
    Frame(function="wait", file="threading.py", line=320),
    Frame(function="get", file="queue.py", line=171),
    Frame(function="_get_conn", file="urllib3/connectionpool.py", line=256),
    Frame(function="urlopen", file="urllib3/connectionpool.py", line=790),
)


def test_a_client_that_takes_nothing():
    for window_ms in (0.0, 1000.0):
        scene = Scene(window_ms=window_ms)
        harness, router, engine = scene.client(), scene.router(), scene.engine()
        scene.untaken(harness, router, 4, age_ms=6_000)
        scene.streams(router, engine, 4)
        verdict = scene.verdict()
        assert (verdict.code, verdict.hop, verdict.holder_pids) == (Code.CLIENT_NOT_READING, "client", (harness,))
        assert (verdict.confidence, verdict.explains) == (Level.HIGH, 4)


@pytest.mark.parametrize("on_the_way", [0.0, 384.0])
def test_lookalike_a_client_that_reads_a_buffer_at_a_time(on_the_way):
    for age_ms, code in ((9_000, Code.UNDETERMINED), (10_000, Code.CLIENT_NOT_READING)):
        scene = Scene()
        harness, router, engine = scene.client(), scene.router(), scene.engine()
        scene.untaken(harness, router, 2, age_ms=age_ms)
        scene.streams(router, engine, 2)
        for index, socket in enumerate(scene.sockets):
            if socket.send_queue:
                scene.sockets[index] = replace(
                    socket, send_queue=on_the_way, send_queue_after=on_the_way, peer_window_bytes=60_000.0,
                    bytes_out_delta=1_700.0,
                )  # fmt: skip
            elif socket.recv_queue:
                after = socket.recv_queue + 1_700.0
                scene.sockets[index] = replace(socket, recv_queue_after=after, bytes_in_delta=1_700.0)
        assert scene.verdict().code is code, age_ms


def test_a_client_on_another_host():
    scene = Scene()
    scene.untaken("10.0.0.9", scene.router(), 2, age_ms=6_000)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids, verdict.holder_address) == (Code.CLIENT_NOT_READING, (), "10.0.0.9")


def test_lookalike_the_end_of_an_answer_left_unread():
    scene = Scene()
    scene.untaken(scene.client(), scene.router(), 4, age_ms=6_000, unread=7)
    for index, socket in enumerate(scene.sockets):
        if socket.send_queue:
            scene.sockets[index] = replace(socket, send_queue=0.0, send_queue_after=0.0)
    assert scene.verdict().code is Code.IDLE


def test_near_miss_a_stopped_client_is_stopped():
    scene = Scene()
    harness, router = scene.client(), scene.router()
    scene.untaken(harness, router, 4, age_ms=6_000)
    scene.state(harness, "T")
    verdict = scene.verdict()
    assert (verdict.code, verdict.hop, verdict.explains) == (Code.PROCESS_STOPPED, "client", 4)


def test_a_named_client_with_nothing_in_flight():
    scene = Scene(client="101")
    harness, router = scene.client(), scene.router()
    assert harness == 101
    scene.idle(harness, router, 4)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids, verdict.confidence) == (
        Code.CLIENT_NOT_SENDING,
        (harness,),
        Level.MEDIUM,
    )
    scene.owed(harness, router, 1, age_ms=200)
    assert scene.verdict().code is Code.NOT_STUCK


def test_threads_that_wait_for_their_own_pool():
    scene = Scene()
    harness, router = scene.client(), scene.router()
    for number in range(26):
        scene.stack(harness, POOL_WAIT, name=f"Thread-{number}")
    verdict = scene.verdict()
    assert (verdict.code, verdict.explains, verdict.confidence) == (Code.CLIENT_NOT_SENDING, 26, Level.HIGH)
    assert "26 requests waiting for a connection of its own pool" in verdict.summary
    scene.idle(harness, router, 4)


def test_the_wait_for_a_pool_comes_after_what_fills_it():
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 4, age_ms=3_000)
    scene.owed(router, engine, 4, age_ms=3_000)
    scene.gauges(engine)
    for number in range(26):
        scene.stack(harness, POOL_WAIT, name=f"Thread-{number}")
    assert [f.code for f in scene.conclude().findings] == [Code.ENGINE_HANDOFF, Code.CLIENT_NOT_SENDING]


def test_near_miss_a_wait_seen_once():
    scene = Scene()
    harness, router = scene.client(), scene.router()
    scene.idle(harness, router, 4)
    scene.stack(harness, POOL_WAIT, name="Thread-1", same=False)
    assert scene.verdict().code is Code.IDLE


def test_lookalike_a_pool_of_idle_workers():
    scene = Scene()
    harness, router = scene.client(), scene.router()
    scene.idle(harness, router, 4)
    idle_worker = (
        Frame(function="get", file="queue.py", line=171),
        Frame(function="_worker", file="concurrent/futures/thread.py", line=81),
    )
    scene.stack(harness, idle_worker, name="ThreadPoolExecutor-0_0")
    assert scene.verdict().code is Code.IDLE


def test_of_a_go_client_it_is_said_what_cannot_be_seen():
    scene = Scene()
    harness, router = scene.client("goharness", runtime="go"), scene.router()
    scene.idle(harness, router, 4)
    verdict = scene.verdict()
    assert verdict.code is Code.IDLE
    assert any(f"pid {harness} is a Go program" in unknown for unknown in verdict.unknowns)
