"""Which socket is at the other end of which: pure functions over the socket tables of the namespaces of one host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from freezeframe.agentd.host.conntrack import Ends
from freezeframe.agentd.host.namespaces import Tables
from freezeframe.agentd.host.sock_diag import ESTAB, LISTEN, TcpSocket, UnixSocket

_ANY_V4, _ANY_V6 = "0.0.0.0", "[::]"  # noqa: S104 - what others listen on
LOOPBACK = ("127.", "[::1]")
# Translations on the way from one end to the other: a published port, a proxy of a mesh, and one to spare.
_TRANSLATIONS = 3


class Net:
    """TCP sockets of one network namespace."""

    def __init__(self, namespace: int, tcp: list[TcpSocket]) -> None:
        """Index them."""
        self.namespace = namespace
        self.tcp = tcp
        self._ends = {(one.local, one.remote): one for one in tcp if one.remote}
        self._listeners = {one.local: one for one in tcp if one.state == LISTEN}
        self._ports = {one.local_port for one in self._listeners.values()}
        # Without an owner: in an accept queue, or closing.
        self._orphans: dict[int, list[TcpSocket]] = {}
        for one in tcp:
            if not one.inode and one.remote:
                self._orphans.setdefault(one.local_port, []).append(one)

    def end(self, local: str, remote: str) -> TcpSocket | None:
        """Find a connection by its addresses."""
        return self._ends.get((local, remote))

    def listener(self, one: TcpSocket) -> TcpSocket | None:
        """Return the listener that this connection came through; None where it was opened from this side."""
        if one.local_port not in self._ports or not one.remote:
            return None
        host = one.local.rpartition(":")[0]
        for address in (host, _ANY_V6) if host.startswith("[") else (host, _ANY_V4, _ANY_V6):
            found = self._listeners.get(f"{address}:{one.local_port}")
            if found is not None:
                return found
        return None

    def waiting(self, listener: TcpSocket) -> Iterator[TcpSocket]:
        """Connections that wait to be accepted."""
        return (one for one in self._orphans.get(listener.local_port, ()) if self.listener(one) is listener)


class Graph:
    """All sockets of one look."""

    def __init__(self) -> None:
        """Start with none."""
        self.nets: list[Net] = []
        # By inode, with their namespace.
        self.unix: dict[int, tuple[int, UnixSocket]] = {}
        self._tcp: dict[int, tuple[Net, TcpSocket]] = {}
        self._translated: dict[Ends, Ends] = {}

    def add(self, namespace: int, tables: Tables) -> None:
        """Add one namespace."""
        net = Net(namespace, tables.tcp)
        self.nets.append(net)
        self._tcp.update({one.inode: (net, one) for one in tables.tcp if one.inode})
        self.unix.update({one.inode: (namespace, one) for one in tables.unix})

    def addresses(self) -> frozenset[str]:
        """Addresses without ports that connections of this host have as their own."""
        return frozenset(one.local.rpartition(":")[0] for net in self.nets for one in net.tcp if one.remote)

    def translate(self, other_ends: Mapping[Ends, Ends]) -> None:
        """Add what the connection tracking of a namespace knows."""
        self._translated.update(other_ends)

    def mirror(self, net: Net, one: TcpSocket) -> TcpSocket | None:
        """Return the other end of a connection, wherever on this host it is; None where it cannot be told."""
        if not one.remote:
            return None
        found = net.end(one.remote, one.local)
        if found is not None:
            return found
        ends = one.remote, one.local
        # Loopback leads nowhere else, but through a translation.
        if not one.remote.startswith(LOOPBACK) and (found := self._elsewhere(net, *ends)) is not None:
            return found
        for _ in range(_TRANSLATIONS):
            beyond = self._translated.get((ends[1], ends[0]))
            if beyond is None:
                return None
            ends = beyond
            found = net.end(*ends) or self._elsewhere(net, *ends)
            if found is not None:
                return found
        return None

    def _elsewhere(self, net: Net, local: str, remote: str) -> TcpSocket | None:
        """Find an end in another namespace; None also where several have one, as networks of containers may repeat."""
        found = [end for other in self.nets if other is not net and (end := other.end(local, remote)) is not None]
        return found[0] if len(found) == 1 else None

    def open_ends(self, inodes: Iterable[int]) -> Iterator[TcpSocket]:
        """Those of these connections, and of those that wait in these listeners, whose other end is not known."""
        for net, one in self._of(inodes):
            for each in net.waiting(one) if one.state == LISTEN else (one,):
                # Over loopback the other end is often just closed.
                leads_out = each.remote and (each.state == ESTAB or not each.remote.startswith(LOOPBACK))
                if leads_out and self.mirror(net, each) is None:
                    yield each

    def clients(self, inodes: Iterable[int]) -> Iterator[int]:
        """Other ends of connections that came in over these sockets, those that wait in a listener included."""
        for net, one in self._of(inodes):
            if one.state == LISTEN:
                near = net.waiting(one)
            elif net.listener(one) is not None:
                near = iter((one,))
            else:
                continue
            ends = (self.mirror(net, each) for each in near)
            yield from (end.inode for end in ends if end is not None and end.inode)

    def servers(self, inodes: Iterable[int]) -> Iterator[int]:
        """Other ends of connections that these sockets opened; the listener's where they wait to be accepted."""
        for net, one in self._of(inodes):
            if one.state == LISTEN or net.listener(one) is not None:
                continue
            end = self.mirror(net, one)
            if end is not None and end.inode:
                yield end.inode
            elif end is not None:
                listeners = (other.listener(end) for other in self.nets)
                yield from (listener.inode for listener in listeners if listener is not None)

    def unix_peers(self, inodes: Iterable[int]) -> Iterator[int]:
        """Other ends of unix sockets."""
        for inode in inodes:
            _, one = self.unix.get(inode, (0, None))
            if one is not None and one.peer_inode:
                yield one.peer_inode

    def peer(self, inode: int) -> int:
        """Inode of the other end of a connected socket; 0 where it is on no process of this host, or not known."""
        if inode in self.unix:
            return self.unix[inode][1].peer_inode
        if inode not in self._tcp:
            return 0
        end = self.mirror(*self._tcp[inode])
        return end.inode if end is not None else 0

    def serves(self, inodes: Iterable[int]) -> bool:
        """Whether a process with these sockets has accepted a TCP connection, or has one waiting."""
        return any(
            next(net.waiting(one), None) is not None if one.state == LISTEN else net.listener(one) is not None
            for net, one in self._of(inodes)
        )

    def _of(self, inodes: Iterable[int]) -> Iterator[tuple[Net, TcpSocket]]:
        return (self._tcp[inode] for inode in inodes if inode in self._tcp)
