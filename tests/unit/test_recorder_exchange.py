from __future__ import annotations

from dataclasses import replace

import pytest

from freezeframe.agentd.bpf import layout
from freezeframe.agentd.bpf.layout import Connection, Stream
from freezeframe.agentd.recorder.exchange import Known, flights
from freezeframe.agentd.recorder.exchange import rests as exchange_rests
from freezeframe.agentd.recorder.heads import RequestHead, ResponseHead


def entry(**fields: object) -> Connection:
    """A server's connection that has read one request of 100 bytes at 1,000."""
    plain = dict.fromkeys(Connection._fields, 0) | {
        "opened_ns": 500, "in_ns": 1_000, "turn_ns": 1_000, "in_bytes": 100, "request_ns": 1_000, "in_tail": bytes(8),
        "out_tail": bytes(8), "tgid": 7, "fd": 8, "requests": 1, "references": 1, "protocol": layout.HTTP1,
        "side": layout.SERVER, "direction": layout.IN,
    }  # fmt: skip
    return Connection(**{**plain, **fields})


KNOWN = Known(
    request=RequestHead(method="POST", path="/x", request_id="i", content_length=20, head_bytes=80), request_number=1
)
ANSWERING = {
    "response_ns": 2_000,
    "out_ns": 3_000,
    "responses": 1,
    "answers": 1,
    "status": 200,
    "direction": layout.OUT,
}


def answer(**fields: object) -> Known:
    return replace(KNOWN, response=ResponseHead(status=200, head_bytes=50, **fields), response_number=1)


def test_a_request_that_is_owed() -> None:
    (flight,) = flights(entry(), KNOWN, ())
    assert (flight.pid, flight.fd, flight.side, flight.method, flight.path) == (7, 8, "server", "POST", "/x")
    assert (flight.began_ns, flight.in_bytes, flight.streaming, flight.arriving) == (1_000, 100, False, False)


def test_one_that_has_not_come_as_a_whole() -> None:
    (flight,) = flights(entry(in_bytes=99), KNOWN, ())
    assert flight.arriving


def test_a_head_that_is_not_known() -> None:
    (flight,) = flights(entry(requests=2), KNOWN, ())
    assert (flight.method, flight.path, flight.request_id) == ("", "", "")


@pytest.mark.parametrize(("sent", "open_"), [(50, True), (149, True), (150, False), (151, False)])
def test_by_its_content_length(sent: int, open_: bool) -> None:
    found = flights(entry(out_bytes=sent, **ANSWERING), answer(content_length=100), ())
    assert [each.streaming for each in found] == [True] * open_


@pytest.mark.parametrize(
    ("tail", "open_"),
    [
        (b"\0\r\n0\r\n\r\n", False),
        (b"0\r\n0\r\n\r\n", False),
        (b"\0\0\0\n\n\r\n\0", True),
        # Ten bytes that were said and end in an empty chunk's length.
        (b"\0\0\x000\r\n\r\n", True),
        (b"\0\0\0\0\0\0\r\n", True),
        # They could not be read: nothing is called unfinished.
        (b"\xff\xff\xff\xff\xff\xff\xff\xff", False),
        (b"\xff\xff\xff\xff\xff\xff\r\n", False),
        (b"\xff\r\n0\r\n\r\n", False),
    ],
)
def test_by_its_last_chunk(tail: bytes, open_: bool) -> None:
    found = flights(entry(out_bytes=900, out_tail=tail, **ANSWERING), answer(chunked=True), ())
    assert [each.streaming for each in found] == [True] * open_


def test_only_a_whole_end_rests_for_certain() -> None:
    def rests(tail: bytes) -> bool:
        return exchange_rests(entry(out_bytes=900, out_tail=tail, **ANSWERING), answer(chunked=True))

    assert rests(b"\0\r\n0\r\n\r\n")
    assert rests(b"\xff\r\n0\r\n\r\n")
    assert not rests(b"\0\0\x000\r\n\r\n")
    assert not rests(b"\xff\xff\xff\xff\xff\xff\r\n")


def test_by_the_end_of_the_connection() -> None:
    known = answer()
    assert len(flights(entry(out_bytes=900, **ANSWERING), known, ())) == 1
    assert flights(entry(out_bytes=900, flags=layout.SHUT_OUT, **ANSWERING), known, ()) == []
    assert flights(entry(out_bytes=900, flags=layout.BROKEN, **ANSWERING), known, ()) == []


@pytest.mark.parametrize("status", [204, 304])
def test_answers_without_a_body(status: int) -> None:
    known = replace(KNOWN, response=ResponseHead(status=status, head_bytes=50), response_number=1)
    assert flights(entry(out_bytes=50, **{**ANSWERING, "status": status}), known, ()) == []


def test_an_answer_of_unknown_length_is_not_called_unfinished() -> None:
    assert flights(entry(out_bytes=900, **ANSWERING), KNOWN, ()) == []


def test_pipelined_ones() -> None:
    known = replace(answer(content_length=100), more_requests=1)
    done = entry(out_bytes=150, **ANSWERING)
    assert [each.status for each in flights(done, known, ())] == [0]
    assert flights(done._replace(answers=2), known, ()) == []
    # The second answer may have gone out in the same call.
    assert flights(done._replace(out_bytes=300), known, ()) == []
    # A head in a read of its own counts where the one before has ended, and is a body where it has not.
    alone = replace(known, more_requests=0)
    assert len(flights(done._replace(pipelined=1, last_head_at=100), alone, ())) == 1
    assert flights(done._replace(pipelined=1, last_head_at=99), alone, ()) == []


def test_an_answer_whose_request_was_before_our_time() -> None:
    late = entry(requests=0, request_ns=0, out_bytes=500, **ANSWERING)
    (flight,) = flights(late, answer(chunked=True), ())
    assert (flight.at_least, flight.streaming, flight.began_ns, flight.method) == (True, True, 2_000, "")


def test_streams_of_http2() -> None:
    connection = entry(protocol=layout.HTTP2, side=layout.CLIENT)
    streams = [Stream(1, 1, 5_000, 0), Stream(1, 3, 6_000, 7_000)]
    found = flights(connection, Known(), streams)
    assert [(each.protocol, each.side, each.began_ns, each.streaming) for each in found] == [
        ("h2", "client", 5_000, False), ("h2", "client", 6_000, True),
    ]  # fmt: skip


def test_tls_by_its_direction_alone() -> None:
    waiting = entry(protocol=layout.TLS, turn_ns=4_000)
    assert [(each.protocol, each.began_ns) for each in flights(waiting, Known(), ())] == [("tls", 4_000)]
    assert flights(waiting._replace(direction=layout.OUT), Known(), ()) == []


def test_the_other_side_has_closed() -> None:
    (flight,) = flights(entry(flags=layout.END_OF_INPUT, ended_ns=9_000), KNOWN, ())
    assert (flight.peer_closed, flight.closed_ns) == (True, 9_000)


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert flights(entry(protocol=layout.UNKNOWN, side=layout.NO_SIDE), Known(), ()) == []
