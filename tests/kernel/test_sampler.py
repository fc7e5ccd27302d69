"""What the sampler makes of a stream is what its client counted."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest

from freezeframe.agentd.recorder.ledger import Ledger
from freezeframe.agentd.recorder.sampler import Sampler

pytestmark = pytest.mark.needs("kernel")

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_bytes_and_events_of_a_stream(ledger: Ledger, line_end: bytes) -> None:
    sampler = Sampler(ledger.counted)
    got = {"bytes": 0, "events": 0}

    def read(sock: socket.socket) -> None:
        while data := sock.recv(65536):
            got["bytes"] += len(data)
            got["events"] += data.count(b"data:")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    with client, server:
        client.sendall(REQUEST)
        server.recv(4096)
        reader = threading.Thread(target=read, args=(client,))
        reader.start()
        sampler.step()
        begin = time.monotonic()
        server.sendall(HEAD)
        for number in range(200):
            event = b'data: {"text": "%d"}' % number + line_end * 2
            server.sendall(b"%x\r\n%s\r\n" % (len(event), event))
            time.sleep(0.005)
        took = time.monotonic() - begin
        sampler.step()
        (entry,) = [
            each for each in ledger.connections().values() if (each.tgid, each.fd) == (os.getpid(), server.fileno())
        ]
        server.sendall(b"0\r\n\r\n")
        server.shutdown(socket.SHUT_WR)
        reader.join(10)
    # Each was written by itself; what the client read may have come several at once.
    assert (got["events"], entry.events) == (200, 200)
    edges = [each for each in sampler.edges if each.edge.server_pid == os.getpid()]
    assert sum(each.answer_rate for each in edges) * took == pytest.approx(got["bytes"], rel=0.05)
    assert sum(each.event_rate for each in edges) * took == pytest.approx(200, rel=0.05)
