"""Each call that carries bytes, by a request and an answer over loopback in this very process: exact counts."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from freezeframe.agentd.bpf import loader, programs
from freezeframe.agentd.bpf.layout import Connection
from freezeframe.agentd.recorder.exchange import Flight
from freezeframe.agentd.recorder.ledger import Ledger

pytestmark = pytest.mark.needs("kernel")

REQUEST = (
    b"POST /v1/chat/completions?key=secret HTTP/1.1\r\nHost: a\r\nX-Request-Id: id-7\r\nContent-Length: 4\r\n\r\nbody"
)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="module", params=["typed registers", "registers", "events"])
def ledger(request: pytest.FixtureRequest, private_directory: Path) -> Iterator[Ledger]:
    """By each way of reading arguments: without BTF the second one, and what lockdown=confidentiality leaves."""
    ways = [programs.LEDGER]
    while ways[-1].otherwise is not None:
        ways.append(ways[-1].otherwise)
    program = dict(zip(("typed registers", "registers", "events"), ways, strict=True))[request.param]
    ledger = Ledger(loader.load(program, str(private_directory)))
    try:
        yield ledger
    finally:
        ledger.close()


@dataclass
class Pair:
    client: socket.socket
    server: socket.socket


@pytest.fixture
def pair(ledger: Ledger) -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    with client, server:
        yield Pair(client, server)


def of(ledger: Ledger, sock: socket.socket) -> list[Flight]:
    return [each for each in ledger.in_flight([os.getpid()]) if each.fd == sock.fileno()]


def one(ledger: Ledger, sock: socket.socket) -> Flight:
    (flight,) = of(ledger, sock)
    return flight


def entry_of(ledger: Ledger, sock: socket.socket) -> Connection:
    (entry,) = [e for e in ledger.connections().values() if (e.tgid, e.fd) == (os.getpid(), sock.fileno())]
    return entry


def own_resting(ledger: Ledger) -> set[int]:
    return {fd for pid, fd in ledger.resting() if pid == os.getpid()}


class Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]


class MessageHeader(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_void_p),
        ("name_len", ctypes.c_uint32),
        ("iov", ctypes.c_void_p),
        ("iov_len", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_len", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        ("pad", ctypes.c_int),
        ("len", ctypes.c_uint64),
    ]


def messages(buffer: ctypes.Array[ctypes.c_char], size: int) -> tuple[MessageHeader, Iovec]:
    vector = Iovec(ctypes.addressof(buffer), size)
    return MessageHeader(iov=ctypes.addressof(vector), iov_len=1), vector


def sendmmsg(fd: int, data: bytes) -> int:
    buffer = ctypes.create_string_buffer(data, len(data))
    header, _vector = messages(buffer, len(data))
    assert ctypes.sizeof(header) == 64
    assert libc.sendmmsg(fd, ctypes.byref(header), 1, 0) == 1
    return header.len


def recvmmsg(fd: int, size: int) -> bytes:
    buffer = ctypes.create_string_buffer(size)
    header, _vector = messages(buffer, size)
    assert libc.recvmmsg(fd, ctypes.byref(header), 1, 0, None) == 1
    return buffer.raw[: header.len]


def readv(fd: int, size: int) -> bytes:
    parts = [bytearray(7), bytearray(size)]
    got = os.readv(fd, parts)
    return b"".join(parts)[:got]


def with_socket(fd: int, use: Callable[[socket.socket], object]) -> object:
    with socket.socket(fileno=os.dup(fd)) as sock:
        return use(sock)


SENDS: dict[str, Callable[[int, bytes], object]] = {
    "write": os.write,
    "writev": lambda fd, data: os.writev(fd, [data[:9], b"", data[9:]]),
    "pwritev2": lambda fd, data: libc.pwritev2(
        fd, ctypes.byref(Iovec(ctypes.cast(data, ctypes.c_void_p), len(data))), 1, ctypes.c_long(-1), 0, 0
    ),
    "sendto": lambda fd, data: libc.send(fd, data, len(data), 0),
    "sendmsg": lambda fd, data: with_socket(fd, lambda sock: sock.sendmsg([data[:20], data[20:]])),
    "sendmmsg": sendmmsg,
}
RECEIVES: dict[str, Callable[[int, int], object]] = {
    "read": os.read,
    "readv": readv,
    "recvfrom": lambda fd, size: with_socket(fd, lambda sock: sock.recv(size)),
    "recvmsg": lambda fd, size: with_socket(fd, lambda sock: sock.recvmsg(size)[0]),
    "recvmmsg": recvmmsg,
}


@pytest.mark.parametrize("receive", RECEIVES)
@pytest.mark.parametrize("send", SENDS)
def test_each_call_is_counted_and_read(ledger: Ledger, pair: Pair, send: str, receive: str) -> None:
    began = time.monotonic_ns()
    SENDS[send](pair.client.fileno(), REQUEST)
    sent = time.monotonic_ns()
    asked = one(ledger, pair.client)
    assert (asked.side, asked.method, asked.path, asked.request_id) == (
        "client", "POST", "/v1/chat/completions", "id-7",
    )  # fmt: skip
    assert (asked.in_bytes, asked.out_bytes, asked.streaming, asked.arriving) == (0, len(REQUEST), False, False)
    assert began < asked.began_ns < sent
    assert RECEIVES[receive](pair.server.fileno(), 4096) == REQUEST
    owed = one(ledger, pair.server)
    assert (owed.side, owed.method, owed.path, owed.request_id) == ("server", "POST", "/v1/chat/completions", "id-7")
    assert (owed.in_bytes, owed.out_bytes, owed.at_least) == (len(REQUEST), 0, False)
    SENDS[send](pair.server.fileno(), ANSWER)
    assert of(ledger, pair.server) == []
    assert RECEIVES[receive](pair.client.fileno(), 4096) == ANSWER
    assert of(ledger, pair.client) == []
    for sock in (pair.client, pair.server):
        entry = entry_of(ledger, sock)
        assert (entry.requests, entry.responses, entry.status, entry.pipelined, entry.flags) == (1, 1, 200, 0, 0)
        assert sorted((entry.in_bytes, entry.out_bytes)) == [len(ANSWER), len(REQUEST)]


def test_what_is_before_a_short_buffer_in_memory_is_not_taken_for_said(ledger: Ledger, pair: Pair) -> None:
    """As programs do whose linker keeps the end of a chunk within the end of the last one."""
    ends = memoryview(b"\r\n0\r\n\r\n")
    line_end, last = ends[5:], ends
    pair.client.sendall(REQUEST)
    pair.server.recv(4096)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    os.writev(pair.server.fileno(), [head, b"a\r\n", b"0123456789", line_end])
    pair.client.recv(4096)
    assert [one(ledger, sock).streaming for sock in (pair.server, pair.client)] == [True, True]
    assert entry_of(ledger, pair.server).out_tail == b"\0\0\0\0\0\0\r\n"
    assert not {sock.fileno() for sock in (pair.server, pair.client)} & own_resting(ledger)
    os.writev(pair.server.fileno(), [b"a\r\n", b"012345678", b"9", last])
    pair.client.recv(4096)
    assert of(ledger, pair.server) == of(ledger, pair.client) == []
    assert entry_of(ledger, pair.server).out_tail == b"\0\r\n0\r\n\r\n"
    assert {sock.fileno() for sock in (pair.server, pair.client)} <= own_resting(ledger)


def test_an_end_over_many_short_writes(ledger: Ledger, pair: Pair) -> None:
    pair.client.sendall(REQUEST)
    pair.server.recv(4096)
    pair.server.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello")
    for piece in (b"\r", b"\n0", b"\r\n\r", b"\n"):
        assert one(ledger, pair.server).streaming
        pair.server.sendall(piece)
    assert of(ledger, pair.server) == []


def test_an_end_in_more_buffers_than_are_looked_at_is_not_called_missing(ledger: Ledger, pair: Pair) -> None:
    pair.client.sendall(REQUEST)
    pair.server.recv(4096)
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    os.writev(pair.server.fileno(), [head, *[b"1\r\nx\r\n"] * 20, b"0\r\n\r\n"])
    assert of(ledger, pair.server) == []
    assert pair.server.fileno() not in own_resting(ledger)


def test_sendfile_and_splice_count_their_bytes(ledger: Ledger, pair: Pair, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"x" * 1000)
    pair.client.sendall(REQUEST)
    pair.server.recv(4096)
    pair.server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n")
    assert one(ledger, pair.server).streaming
    with body.open("rb") as file:
        assert os.sendfile(pair.server.fileno(), file.fileno(), 0, 1000) == 1000
        assert one(ledger, pair.server).out_bytes == 1041
        reader, writer = os.pipe()
        file.seek(0)
        assert os.splice(file.fileno(), writer, 1000) == 1000
        assert os.splice(reader, pair.server.fileno(), 1000) == 1000
        os.close(reader)
        os.close(writer)
    assert of(ledger, pair.server) == []
    assert one(ledger, pair.client).streaming is False
    while len(pair.client.recv(4096, socket.MSG_PEEK)) < 2041:
        pass
    assert one(ledger, pair.client).in_bytes == 0
    assert len(pair.client.recv(4096)) == 2041
    assert of(ledger, pair.client) == []


def test_splice_into_a_pipe_counts_as_received(ledger: Ledger, pair: Pair) -> None:
    pair.client.sendall(REQUEST)
    pair.server.recv(4096)
    pair.server.sendall(ANSWER)
    pair.client.recv(4096)
    pair.client.sendall(REQUEST)
    pair.server.recv(4096)
    pair.server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    pair.client.recv(4096)
    pair.server.sendall(b"y" * 100)
    reader, writer = os.pipe()
    assert os.splice(pair.client.fileno(), writer, 100) == 100
    assert of(ledger, pair.client) == []
    os.close(reader)
    os.close(writer)


def test_a_descriptor_used_again_begins_anew(ledger: Ledger, pair: Pair) -> None:
    pair.client.sendall(REQUEST)
    pair.server.recv(4096)
    number = pair.server.fileno()
    assert [each.fd for each in ledger.in_flight([os.getpid()]) if each.fd == number] == [number]
    pair.server.close()
    assert [each for each in ledger.in_flight([os.getpid()]) if each.fd == number] == []
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as client:
        server, _ = listener.accept()
        with server:
            client.sendall(b"GET /other HTTP/1.1\r\n\r\n")
            server.recv(4096)
            paths = {each.path for each in ledger.in_flight([os.getpid()]) if each.side == "server"}
            assert paths == {"/other"}


def test_a_duplicate_is_the_same_connection(ledger: Ledger, pair: Pair) -> None:
    copy = os.dup(pair.server.fileno())
    pair.client.sendall(REQUEST)
    assert os.read(copy, 4096) == REQUEST
    assert one(ledger, pair.server).path == "/v1/chat/completions"
    number = pair.server.detach()
    os.close(number)
    (kept,) = [each for each in ledger.in_flight([os.getpid()]) if each.side == "server"]
    assert kept.in_bytes == len(REQUEST)
    os.write(copy, ANSWER)
    assert [each for each in ledger.in_flight([os.getpid()]) if each.side == "server"] == []
    os.close(copy)


def test_what_gets_the_number_of_a_duplicate_s_original_is_not_the_connection(ledger: Ledger, pair: Pair) -> None:
    fd = pair.server.fileno()
    pair.client.sendall(REQUEST)
    assert os.read(fd, 4096) == REQUEST
    with socket.socket(fileno=os.dup(fd)) as copy:
        pair.server.close()
        others = [os.open("/dev/zero", os.O_RDONLY)]
        try:
            while others[-1] != fd:
                others.append(os.open("/dev/zero", os.O_RDONLY))
            assert len(os.read(fd, 4096)) == 4096
            copy.sendall(ANSWER)
            (entry,) = [e for e in ledger.connections().values() if (e.tgid, e.fd) == (os.getpid(), fd)]
            assert (entry.in_bytes, entry.out_bytes, entry.references) == (len(REQUEST), len(ANSWER), 1)
        finally:
            for other in others:
                os.close(other)


def test_shutdown_and_end_of_input_are_told(ledger: Ledger, pair: Pair) -> None:
    pair.client.sendall(REQUEST)
    pair.server.recv(4096)
    assert one(ledger, pair.server).peer_closed is False
    pair.client.shutdown(socket.SHUT_WR)
    assert pair.server.recv(4096) == b""
    gone = one(ledger, pair.server)
    assert gone.peer_closed
    assert gone.closed_ns > gone.last_in_ns


def test_a_program_that_runs_while_its_close_returns_keeps_the_new_connection(ledger: Ledger) -> None:
    """Descriptors are free before close returns: an accept of another thread must not be lost to it."""
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            os.close(os.open("/dev/null", os.O_RDONLY))

    threads = [threading.Thread(target=churn) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
            for _ in range(200):
                with socket.create_connection(listener.getsockname()) as client:
                    server, _ = listener.accept()
                    with server:
                        client.sendall(REQUEST)
                        server.recv(4096)
                        sides = sorted(each.side for each in ledger.in_flight([os.getpid()]))
                        assert sides == ["client", "server"]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
