"""What became of TCP connections, counted per edge and kind from the ring of `sockets.bpf.c`.

An edge is the client's address without its port and the server's with its port. Which end is the server's is known of
what was opened since the recorder was armed and of ports that were accepted on; of other connections the lower port is
taken for the server's.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeVar

from freezeframe.agentd.bpf import layout
from freezeframe.agentd.bpf.loader import Loaded

CONNECTED, ACCEPTED, CONNECT_FAILED, CLOSED_HERE, CLOSED_THERE, RESET_SENT, RESET_RECEIVED, RETRANSMITTED = range(1, 9)
_NAMES = {
    CONNECTED: "connected",
    ACCEPTED: "accepted",
    CONNECT_FAILED: "connect failed",
    RETRANSMITTED: "retransmitted",
}
_Key = TypeVar("_Key", bound=Hashable)
_Value = TypeVar("_Value")
# Edges and kinds, and closed connections, that are kept; the longest unchanged go first.
_MAX_EDGES = 4096
_MAX_CLOSED = 4096
_MAX_PORTS = 4096


@dataclass(slots=True, kw_only=True)
class Count:
    """How often, and when last (CLOCK_MONOTONIC nanoseconds)."""

    number: int = 0
    last_ns: int = 0
    # The process that did it, where it was one of this host; 0 = unknown.
    pid: int = 0


# Client without port, server with port, what.
Edge = tuple[str, str, str]


class Connections:
    """Reads one ring. Events that were overwritten before they were read are counted."""

    def __init__(self, loaded: Loaded) -> None:
        """Map the ring."""
        self._events = loaded.maps["socket_events"].memory()
        self._last = loaded.maps["last_event"].memory()
        self._loaded = loaded
        self._read = 0
        self.lost = 0
        self.edges: OrderedDict[Edge, Count] = OrderedDict()
        # Local and remote end of what was closed -> when the other end did it first.
        self.closed_there: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._closed: OrderedDict[frozenset[str], None] = OrderedDict()
        self._server_ports: OrderedDict[int, None] = OrderedDict()

    def read(self) -> None:
        """Take what the ring has."""
        last = layout.ID.unpack_from(self._last)[0]
        first = max(self._read + 1, last - layout.SOCKET_EVENTS + 1)
        self.lost += first - self._read - 1
        size = layout.SOCKET_EVENT.size
        for number in range(first, last + 1):
            at = number % layout.SOCKET_EVENTS * size
            at_ns, written, pid, local, remote, local_port, remote_port, what = layout.SOCKET_EVENT.unpack_from(
                self._events, at
            )
            if written != number & 0xFFFFFFFF:
                self.lost += 1
            else:
                self._take(at_ns, pid, _address(local), local_port, _address(remote), remote_port, what)
        self._read = last

    def close(self) -> None:
        """Detach and let go of the memory."""
        self._events.close()
        self._last.close()
        self._loaded.close()

    def _take(
        self, at_ns: int, pid: int, local: str, local_port: int, remote: str, remote_port: int, what: int
    ) -> None:
        if what == ACCEPTED:
            _remember(self._server_ports, local_port, _MAX_PORTS)
        elif what == CONNECTED:
            _remember(self._server_ports, remote_port, _MAX_PORTS)
        here, there = f"{local}:{local_port}", f"{remote}:{remote_port}"
        serves = self._serves(local_port, remote_port) if what not in (ACCEPTED, CONNECTED) else what == ACCEPTED
        if what == CONNECT_FAILED:
            serves = False
        client, server = (remote, here) if serves else (local, there)
        if what in _NAMES:
            self._count((client, server, _NAMES[what]), at_ns, pid)
            return
        if what == CLOSED_THERE:
            self.closed_there[here, there] = at_ns
            _bound(self.closed_there, _MAX_CLOSED)
        # Both ends may be on this host and tell of the same.
        both = frozenset((here, there, "reset" if what in (RESET_SENT, RESET_RECEIVED) else "closed"))
        if both in self._closed:
            return
        _remember(self._closed, both, _MAX_CLOSED)
        by_server = (what in (CLOSED_HERE, RESET_SENT)) == serves
        verb = "reset" if what in (RESET_SENT, RESET_RECEIVED) else "closed"
        self._count((client, server, f"{verb} by {'server' if by_server else 'client'}"), at_ns, pid)

    def _serves(self, local_port: int, remote_port: int) -> bool:
        """Whether the local end is the server's."""
        if (local_port in self._server_ports) != (remote_port in self._server_ports):
            return local_port in self._server_ports
        return local_port < remote_port

    def _count(self, edge: Edge, at_ns: int, pid: int) -> None:
        count = self.edges.setdefault(edge, Count())
        count.number += 1
        count.last_ns = at_ns
        count.pid = pid or count.pid
        self.edges.move_to_end(edge)
        _bound(self.edges, _MAX_EDGES)


def _remember(kept: OrderedDict[_Key, None], key: _Key, most: int) -> None:
    kept[key] = None
    kept.move_to_end(key)
    _bound(kept, most)


def _bound(kept: OrderedDict[_Key, _Value], most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)


def _address(data: bytes) -> str:
    mapped = ipaddress.IPv6Address(data).ipv4_mapped
    return str(mapped) if mapped is not None else f"[{ipaddress.IPv6Address(data)}]"
