from __future__ import annotations

import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.recorder.heads import RequestHead, request_head, request_heads_in, response_head

POST = (
    b"POST /v1/chat/completions?key=SECRET#x HTTP/1.1\r\nHost: SECRET\r\nAuthorization: Bearer SECRET\r\n"
    b"X-Request-ID:  abc-1 \r\ncontent-length: 11\r\n\r\nSECRET body"
)


def test_what_is_kept_of_a_request() -> None:
    head = RequestHead(
        method="POST",
        path="/v1/chat/completions",
        request_id="abc-1",
        content_length=11,
        head_bytes=len(POST) - 11,
    )
    assert request_head(POST) == head
    assert request_head(bytearray(POST)) == head


def test_it_is_read_where_it_is() -> None:
    with mmap.mmap(-1, 4096) as memory:
        memory[100 : 100 + len(POST)] = POST
        assert request_head(memory, 100, 100 + len(POST)) == request_head(POST)


@pytest.mark.parametrize(
    ("line", "path"),
    [
        (b"GET / HTTP/1.1\r\n", "/"),
        (b"GET /a?b=c", "/a"),
        (b"GET /a", "/a"),
        (b"GET http://user:SECRET@host:1/a?b HTTP/1.1\r\n", "/a"),
        (b"OPTIONS * HTTP/1.1\r\n", "*"),
        (b"GET /\x1b[31m\xe2\x80\xae HTTP/1.1\r\n", "/\\x1b[31m\\xe2\\x80\\xae"),
        (b"GET /" + b"x" * 400 + b" HTTP/1.1\r\n", "/" + "x" * 255),
        (b"CONNECT user:SECRET@host:443 HTTP/1.1\r\n", ""),
    ],
)
def test_paths(line: bytes, path: str) -> None:
    assert request_head(line).path == path
    assert request_head(line).method == line.split()[0].decode()


@pytest.mark.parametrize(
    "data", [b"", b"GET", b"HELLO / HTTP/1.1\r\n\r\n", b"get / HTTP/1.1\r\n", b"\r\nGET / HTTP/1.1"]
)
def test_what_is_no_request(data: bytes) -> None:
    assert request_head(data) == RequestHead()


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        (b"x-correlation-id: c\r\nX-Request-Id: r\r\n", "r"),
        (b"x-correlation-id: c\r\nx-trace-id: t\r\n", "c"),
        (b"request-id: q\r\n", "q"),
        (
            b"traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n",
            "0af7651916cd43dd8448eb211c80319c",
        ),
        (b"traceparent: junk\r\n", ""),
        (b"x-request-id: two words\r\n", ""),
        (b"x-request-id: " + b"i" * 129 + b"\r\n", ""),
        (b"x-not-request-id: a\r\n", ""),
    ],
)
def test_request_ids(fields: bytes, found: str) -> None:
    assert request_head(b"GET / HTTP/1.1\r\n" + fields + b"\r\n").request_id == found


def test_half_a_value_is_no_value() -> None:
    for cut in range(len(POST)):
        head = request_head(POST[:cut])
        assert head.request_id in ("", "abc-1")
        assert head.content_length in (None, 11)
        assert head.head_bytes in (0, len(POST) - 11)


def test_what_is_kept_of_an_answer() -> None:
    head = response_head(
        b"HTTP/1.1 503 Nope\r\nSet-Cookie: SECRET\r\nTransfer-Encoding: chunked\r\nx-request-id: i\r\n\r\n5\r\n"
    )
    assert (head.status, head.chunked, head.content_length, head.request_id) == (503, True, None, "i")
    assert response_head(b"HTTP/2 200\r\n").status == 0


def test_a_body_is_not_taken_for_fields() -> None:
    head = request_head(b"POST / HTTP/1.1\r\nHost: a\r\n\r\nx\r\nX-Request-Id: SECRET\r\ncontent-length: 5\r\n\r\n")
    assert (head.request_id, head.content_length) == ("", None)


def test_pipelined_ones_are_counted() -> None:
    get = b"GET / HTTP/1.1\r\n\r\n"
    assert request_heads_in(get * 3) == 3
    assert request_heads_in(POST + get + get[:9]) == 3
    assert request_heads_in(POST[:-3]) == 1
    assert request_heads_in(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + get) == 1


@given(st.binary(max_size=300), st.integers(0, 300))
def test_no_bytes_do_harm(data: bytes, begin: int) -> None:
    for prefix in (b"", b"GET /", b"POST / HTTP/1.1\r\n", b"HTTP/1.1 200 OK\r\n"):
        request_head(prefix + data, min(begin, len(data)))
        response_head(prefix + data)
        request_heads_in(prefix + data)
