"""Who is at the other end of a connection: its process where that lives on this host, else its address.

The ledger knows descriptors; the kernel's socket tables know addresses. They are asked for new connections only, and
no more often than costs a fixed share of one CPU.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NamedTuple

from freezeframe.agentd.bpf.layout import Connection
from freezeframe.agentd.host import namespaces, sock_diag
from freezeframe.agentd.host.sock_diag import SockDiagError, TcpSocket

# CPU time that asking for the tables may take, of the time that passes.
_SHARE = 0.005
_LONGEST_S = 15.0
# Tries for a connection that is in no table, as no TCP is, or whose other end is nobody's here: it may be new there.
_TRIES = 3


class Peer(NamedTuple):
    """The other end."""

    # 0 when it is on another host, or unknown.
    pid: int = 0
    # Without its port; empty for a process of this host.
    address: str = ""


UNKNOWN = Peer()


class Peers:
    """Peers by number of connection."""

    def __init__(self, *, proc: str = "/proc", clock: Callable[[], float] = time.monotonic) -> None:
        """Know nobody yet."""
        self._proc = proc
        self._clock = clock
        self._known: dict[int, Peer] = {}
        self._tries: dict[int, int] = {}
        self._not_before = 0.0
        self._spent_s = 0.0

    def of(self, number: int) -> Peer:
        """The other end of a connection, as far as it is known."""
        return self._known.get(number, UNKNOWN)

    def learn(self, connections: dict[int, Connection]) -> None:
        """Look up those that are new; forget those that have gone."""
        for gone in self._known.keys() - connections.keys():
            del self._known[gone]
        for gone in self._tries.keys() - connections.keys():
            del self._tries[gone]
        new = {
            number: each
            for number, each in connections.items()
            if not self._known.get(number, UNKNOWN).pid and self._tries.get(number, 0) < _TRIES
        }
        begin = self._clock()
        if not new or begin < self._not_before:
            return
        before = time.thread_time()
        self._look_up(new, connections)
        spent_s = time.thread_time() - before
        # One that was slow once is not slow.
        self._not_before = begin + min(_LONGEST_S, min(spent_s, self._spent_s) / _SHARE)
        self._spent_s = spent_s

    def _look_up(self, new: dict[int, Connection], connections: dict[int, Connection]) -> None:
        inodes = {number: self._inode(each) for number, each in connections.items()}
        pids = {inode: connections[number].tgid for number, inode in inodes.items() if inode}
        found: dict[int, TcpSocket] = {}
        # Both ends of one connection have the same two addresses, across namespaces too.
        owners: dict[tuple[str, str], int] = {}
        tgids = {each.tgid for each in connections.values()}
        for pid in namespaces.namespaces_of(self._proc, tgids).values():
            for socket in self._tables(pid):
                if socket.inode in pids:
                    found[socket.inode] = socket
                    owners[socket.local, socket.remote] = pids[socket.inode]
        for number in new:
            mine = found.get(inodes[number])
            owner = owners.get((mine.remote, mine.local), 0) if mine else 0
            if not owner:
                self._tries[number] = self._tries.get(number, 0) + 1
            if mine is not None and mine.remote:
                self._known[number] = Peer(pid=owner) if owner else Peer(address=mine.remote.rpartition(":")[0])

    def _tables(self, pid: int) -> Iterable[TcpSocket]:
        with suppress(SockDiagError, OSError):
            return sock_diag.tcp_sockets(f"{self._proc}/{pid}/ns/net", info=False)
        return ()

    def _inode(self, connection: Connection) -> int:
        with suppress(OSError, ValueError):
            link = os.readlink(f"{self._proc}/{connection.tgid}/fd/{connection.fd}")
            if link.startswith("socket:["):
                return int(link[8:-1])
        return 0
