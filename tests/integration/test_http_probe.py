from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from freezeframe.agentd.host.http_probe import PROBE_SOURCE, Answer, Prober, Question

Serve = Callable[[Callable[[socket.socket], None]], int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server that handles one connection with a function; gives its port."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(handle: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def run() -> None:
            one, _ = listener.accept()
            with one:
                handle(one)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return int(listener.getsockname()[1])

    yield start
    for thread in threads:
        thread.join(20)
    for listener in listeners:
        listener.close()


def ask(port: int, *, timeout_s: float = 5.0, body_bytes: int = 1000) -> Answer:
    prober = Prober(timeout_s=timeout_s, body_bytes=body_bytes)
    prober.ask(Question(host="127.0.0.1", port=port, path="/x"))
    ((_, answer),) = list(prober.answers())
    return answer


def until_closed(one: socket.socket) -> None:
    while one.recv(65536):
        pass


def replying(data: bytes, *, keep_open: bool = False) -> Callable[[socket.socket], None]:
    def handle(one: socket.socket) -> None:
        one.recv(65536)
        try:
            one.sendall(data)
            if keep_open:
                until_closed(one)
        except OSError:
            pass  # the prober had enough

    return handle


def test_what_the_server_is_sent(serve: Serve) -> None:
    seen = []

    def handle(one: socket.socket) -> None:
        seen.append((one.getpeername()[0], one.recv(65536)))
        one.sendall(b"HTTP/1.1 200 OK\r\n\r\nbody")

    port = serve(handle)
    answer = ask(port)
    assert (answer.status, answer.body, answer.error) == (200, b"body", "")
    ((address, request),) = seen
    assert address == PROBE_SOURCE
    assert request.startswith(b"GET /x HTTP/1.1\r\n")
    assert b"\r\nUser-Agent: freezeframe" in request
    assert b"\r\nConnection: close\r\n" in request
    assert b"ookie" not in request
    assert b"uthorization" not in request


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwhole", (200, b"whole", "")),
        (b"HTTP/1.1 503 Oh\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", (503, b"abcde", "")),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", (302, b"", "")),
    ],
)
def test_a_whole_answer_is_enough_although_the_server_keeps_the_connection(
    serve: Serve, reply: bytes, expected: tuple[int, bytes, str]
) -> None:
    answer = ask(serve(replying(reply, keep_open=True)))
    assert (answer.status, answer.body, answer.error) == expected
    assert answer.duration_ms < 4000


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (b"", (0, b"", "closed without an answer")),
        (b"SSH-2.0-OpenSSH_9.2\r\n", (0, b"", "does not speak HTTP")),
        (b"\x15\x03\x01\x00\x02\x02\x46", (0, b"", "speaks TLS, which is not asked")),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", (200, b"half", "answer ended early")),
        (b"HTTP/1.1 huh\r\n\r\n", (0, b"", "does not speak HTTP")),
        (b"HTTP/1.1 200 OK\r\n" + b"x" * 200_000, (0, b"", "does not speak HTTP")),
    ],
)
def test_what_is_not_an_answer(serve: Serve, reply: bytes, expected: tuple[int, bytes, str]) -> None:
    answer = ask(serve(replying(reply)))
    assert (answer.status, answer.body, answer.error) == expected


def test_a_huge_answer_is_cut(serve: Serve) -> None:
    answer = ask(serve(replying(b"HTTP/1.1 200 OK\r\n\r\n" + b"y" * 50_000_000)), body_bytes=1009)
    assert (answer.status, answer.body, answer.error) == (200, b"y" * 1009, "answer cut after 1009 bytes")


def test_a_trickling_answer_is_given_up_in_time(serve: Serve) -> None:
    def handle(one: socket.socket) -> None:
        one.recv(65536)
        try:
            for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + b"z" * 100_000:
                one.sendall(bytes([byte]))
                time.sleep(0.005)
        except OSError:
            pass  # the prober had enough

    begin = time.monotonic()
    answer = ask(serve(handle), timeout_s=0.5)
    assert time.monotonic() - begin < 3
    assert (answer.status in (0, 200), answer.error) == (True, "no whole answer in time")


def test_a_listener_that_never_accepts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answer = ask(listener.getsockname()[1], timeout_s=0.3)
    assert (answer.status, answer.error) == (0, "no answer")
    assert answer.duration_ms >= 300


def test_a_listener_whose_queue_is_full() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        with socket.create_connection(listener.getsockname()):
            answer = ask(listener.getsockname()[1], timeout_s=0.3)
        assert (answer.status, answer.error) == (0, "connect timed out")


def test_nobody_listens() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        answer = ask(one.getsockname()[1])
    assert (answer.status, answer.error) == (0, "refused")


def test_questions_are_asked_side_by_side_and_later_ones_can_be_added(serve: Serve) -> None:
    quick, next_one = (serve(replying(b"HTTP/1.1 200 OK\r\n\r\nq")) for _ in range(2))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        prober = Prober(timeout_s=2.0)
        begin = time.monotonic()
        prober.ask(Question(host="127.0.0.1", port=silent.getsockname()[1], path="/silent"))
        prober.ask(Question(host="127.0.0.1", port=quick, path="/quick"))
        order = []
        for question, answer in prober.answers():
            order.append((question.path, answer.status, time.monotonic() - begin))
            if question.path == "/quick":
                prober.ask(Question(host="127.0.0.1", port=next_one, path="/later"), delay_s=0.2)
    assert [(path, status) for path, status, _ in order] == [("/quick", 200), ("/later", 200), ("/silent", 0)]
    assert 0.2 <= order[1][2] < 2.0 <= order[2][2]
