"""What becomes of connections: exact counts per edge, over loopback in this very process."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from freezeframe.agentd.bpf import layout, loader, programs
from freezeframe.agentd.recorder.connections import Connections

pytestmark = pytest.mark.needs("kernel")


@pytest.fixture
def connections(private_directory: Path) -> Iterator[Connections]:
    connections = Connections(loader.load(programs.SOCKETS, str(private_directory)))
    try:
        yield connections
    finally:
        connections.close()


def counts(connections: Connections, port: int) -> dict[str, int]:
    connections.read()
    edges = connections.edges.items()
    return {
        what: count.number
        for (client, server, what), count in edges
        if (client, server) == ("127.0.0.1", f"127.0.0.1:{port}")
    }


def test_who_closed_first(connections: Connections) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        for number in range(7):
            client = socket.create_connection(address)
            server, _ = listener.accept()
            first, second = (server, client) if number < 3 else (client, server)
            first.close()
            assert second.recv(1) == b""
            second.close()
    assert counts(connections, address[1]) == {
        "connected": 7, "accepted": 7, "closed by server": 3, "closed by client": 4,
    }  # fmt: skip


def test_what_the_other_side_closed_and_this_one_did_not_notice(connections: Connections) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        server.close()
        with client:
            connections.read()
            here = f"127.0.0.1:{client.getsockname()[1]}"
            there = f"127.0.0.1:{listener.getsockname()[1]}"
            assert (here, there) in connections.closed_there
            assert (there, here) not in connections.closed_there


def test_resets_and_refusals(connections: Connections) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        client = socket.create_connection(address)
        server, _ = listener.accept()
        with client:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            server.close()
            with pytest.raises(ConnectionResetError):
                client.recv(1)
    assert counts(connections, address[1]) == {"connected": 1, "accepted": 1, "reset by server": 1}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)
    assert counts(connections, address[1])["connect failed"] == 1


def test_more_than_the_ring_holds_is_counted_as_lost(connections: Connections) -> None:
    connections.read()
    before = connections.lost
    seen = sum(count.number for count in connections.edges.values())
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        # Four events each, of which the two of closing are one.
        for _ in range(layout.SOCKET_EVENTS // 4 + 300):
            client = socket.create_connection(listener.getsockname())
            server, _ = listener.accept()
            client.close()
            server.close()
        connections.read()
    assert connections.lost - before >= 4 * 300
    assert sum(count.number for count in connections.edges.values()) > seen


def test_ipv6(connections: Connections) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as listener:
        address = listener.getsockname()
        with socket.create_connection(address[:2]):
            listener.accept()[0].close()
    connections.read()
    assert connections.edges["[::1]", f"[::1]:{address[1]}", "accepted"].number == 1
