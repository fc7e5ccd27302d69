from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from freezeframe.judge.correlate import correlate
from freezeframe.judge.correlate.facts import Connection, Debt
from freezeframe.judge.model import ConnectionEnd, RecorderState, Request, Socket, Verdict
from freezeframe.judge.verdicts import conclude
from tests.support.scene import Scene

Side = Request.Side


def quiet() -> tuple[Scene, Socket, Socket]:
    """One connection without a debt, as sockets show it: its client's end and its server's."""
    scene = Scene()
    scene.idle(scene.client(), scene.router(), age_ms=12_000)
    client, server = scene.sockets[-2:]
    assert server.accepted
    return scene, client, server


def request(end: Socket, side: Side, **fields: Any) -> Request:
    kept = {"protocol": "http/1.1", "source": "recorder", "age_ms": 40_000.0, "last_in_age_ms": 15_000.0}
    return Request(pid=end.pid, fd=end.fd, side=side, **{**kept, "last_out_age_ms": 12_000.0, **fields})


def judged(scene: Scene, *requests: Request, resting: tuple[ConnectionEnd, ...] = ()) -> Connection:
    snapshot = replace(scene.snapshot(), requests=requests, recorder=RecorderState(armed_ms=1e6, resting=resting))
    (connection,) = correlate([snapshot]).connections
    return connection


def test_an_answer_that_has_begun_and_stands_still_is_owed() -> None:
    scene, client, server = quiet()
    found = judged(scene, request(server, Side.SERVER, streaming=True))
    assert (found.debt, found.age_ms, found.broken_off) == (Debt.ANSWER, 12_000.0, True)
    # With the server elsewhere the client's end tells: its last byte in.
    found = judged(scene, request(client, Side.CLIENT, streaming=True))
    assert (found.debt, found.age_ms) == (Debt.ANSWER, 15_000.0)


def test_an_answer_that_has_not_begun_is_owed_since_the_request_came() -> None:
    scene, _, server = quiet()
    found = judged(scene, request(server, Side.SERVER, last_in_age_ms=2_000.0))
    assert (found.debt, found.age_ms, found.broken_off) == (Debt.ANSWER, 2_000.0, False)


@pytest.mark.parametrize(
    "fields",
    [
        # A slow stream pauses.
        {"streaming": True, "last_out_age_ms": 4_000.0},
        {"streaming": True, "protocol": "websocket"},
        {"streaming": True, "protocol": "h2"},
        {"protocol": "tls"},
        {"arriving": True},
        {"streaming": True, "closed_age_ms": 100.0},
        {"streaming": True, "source": "socket"},
    ],
)
def test_lookalikes_owe_nothing(fields: dict[str, Any]) -> None:
    scene, _, server = quiet()
    found = judged(scene, request(server, Side.SERVER, **fields))
    assert (found.debt, found.rests, found.broken_off) == (Debt.NONE, False, False)


def test_a_stream_that_moves_is_not_broken_off() -> None:
    scene = Scene()
    scene.streams(scene.client(), scene.router())
    found = judged(scene, request(scene.sockets[-1], Side.SERVER, streaming=True))
    assert (found.debt, found.streaming) == (Debt.NONE, True)


def test_a_connection_on_which_every_answer_ended_rests() -> None:
    scene, client, server = quiet()
    for end in (client, server):
        assert end.pid is not None
        assert end.fd is not None
        assert judged(scene, resting=(ConnectionEnd(pid=end.pid, fd=end.fd),)).rests
    assert not judged(scene, resting=(ConnectionEnd(pid=1, fd=1),)).rests


def test_idle_connections_of_decode_that_rest_leave_the_missing_leg_proved() -> None:
    def code(*, resting: bool) -> Verdict.Code:
        scene = Scene()
        harness, router = scene.client(), scene.router()
        prefill, decode = scene.engine("prefill"), scene.engine("decode")
        scene.owed(harness, router, 5, age_ms=4_000)
        scene.owed(router, prefill, 5, age_ms=4_000)
        before = len(scene.sockets)
        scene.idle(router, decode, 5)
        ends = tuple(
            ConnectionEnd(pid=each.pid or 0, fd=each.fd or 0) for each in scene.sockets[before:] if each.accepted
        )
        recorder = RecorderState(armed_ms=1e6, resting=ends if resting else ())
        verdict = conclude(replace(scene.snapshot(), recorder=recorder)).verdict
        assert verdict is not None
        return verdict.code

    assert code(resting=False) is Verdict.Code.UNDETERMINED
    assert code(resting=True) is Verdict.Code.ROUTER_DUAL_LEG


def test_an_end_that_one_end_has_seen_was_missed_by_the_other() -> None:
    scene, client, server = quiet()
    seen = ConnectionEnd(pid=client.pid or 0, fd=client.fd or 0)
    found = judged(scene, request(server, Side.SERVER, streaming=True), resting=(seen,))
    assert (found.debt, found.rests, found.broken_off) == (Debt.NONE, True, False)
