"""Socket records of one look: whose each socket is, who is at its other end, who accepted it.

Left out: sockets of processes that are not watched, and the agent's own, also from a listener's backlog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from freezeframe.agentd.host.descriptors import Owners
from freezeframe.agentd.host.http_probe import PROBE_SOURCE
from freezeframe.agentd.host.sock_diag import LISTEN, SYN_SENT, TcpSocket, UnixSocket
from freezeframe.agentd.host.socket_graph import Graph, Net
from freezeframe.agentd.host.text import escape
from freezeframe.judge.model import Socket

_NAME_BYTES = 108


class Records:
    """Writes one look down as Socket records."""

    def __init__(self, graph: Graph, owners: Owners, whole: set[int], own: set[int]) -> None:
        """`whole`: processes of which every socket counts; `own`: the agent's, of which none does."""
        self._graph = graph
        self._owners = owners
        self._whole = whole
        self._own = own
        # Listener -> connections of the agent in its accept queue.
        self._agents: Counter[int] = Counter()

    def all(self, *, lasting: bool) -> Iterator[Socket]:
        """Give all of them; `lasting` is what they say of themselves."""
        listeners = []
        for net in self._graph.nets:
            for one in net.tcp:
                if one.state == LISTEN:
                    listeners.append((net.namespace, one))
                elif (record := self._connection(net, one, lasting=lasting)) is not None:
                    yield record
        for namespace, one in listeners:
            owners = self._owners.of(one.inode)
            if self._counts(owners):
                yield self._listener(namespace, one, owners, lasting=lasting)
        for namespace, each in self._graph.unix.values():
            record = self._unix(namespace, each, lasting=lasting)
            if record is not None:
                yield record

    def _counts(self, owners: list[tuple[int, int]]) -> bool:
        return any(pid in self._whole for pid, _ in owners)

    def _agents_own(self, owners: list[tuple[int, int]]) -> bool:
        return any(pid in self._own for pid, _ in owners)

    def _connection(self, net: Net, one: TcpSocket, *, lasting: bool) -> Socket | None:
        owners = self._owners.of(one.inode) if one.inode else []
        other = self._graph.mirror(net, one)
        peers = self._owners.of(other.inode) if other is not None and other.inode else []
        listener = net.listener(one)
        # One that has an inode and no owner was closed since the kernel was asked.
        waits = not one.inode and listener is not None and self._counts(self._owners.of(listener.inode))
        # The other end of a connection that waits in a watched listener, too.
        meets = other is not None and not other.inode and self._meets(other)
        if not (self._counts(owners) or self._counts(peers) or waits or meets):
            return None
        if self._agents_own(owners) or self._agents_own(peers) or _is_probe(one):
            if waits and listener is not None:
                self._agents[listener.inode] += 1
            return None
        return _connection(one, owners, other, peers, net.namespace, accepted=listener is not None, lasting=lasting)

    def _meets(self, other: TcpSocket) -> bool:
        return any(
            self._counts(self._owners.of(listener.inode))
            for net in self._graph.nets
            if (listener := net.listener(other)) is not None
        )

    def _listener(self, namespace: int, one: TcpSocket, owners: list[tuple[int, int]], *, lasting: bool) -> Socket:
        waiting = max(0, one.receive_queue - self._agents[one.inode])
        return Socket(
            family="tcp",
            state=one.state,
            local=one.local,
            pid=owners[0][0],
            fd=owners[0][1],
            recv_queue=float(waiting),
            backlog=waiting,
            backlog_limit=one.send_queue or None,
            inode=one.inode,
            netns=float(namespace),
            shared_with=tuple(pid for pid, _ in owners[1:]),
            lasting=lasting,
        )

    def _unix(self, namespace: int, one: UnixSocket, *, lasting: bool) -> Socket | None:
        owners = self._owners.of(one.inode)
        peers = self._owners.of(one.peer_inode) if one.peer_inode else []
        if not (self._counts(owners) or (owners and self._counts(peers))):
            return None
        if self._agents_own(owners) or self._agents_own(peers):
            return None
        listens = one.state == LISTEN
        _, other = self._graph.unix.get(one.peer_inode, (0, None))
        return Socket(
            family="unix",
            state=one.state,
            local=_unix_name(one.name),
            remote=_unix_name(other.name) if other is not None else "",
            pid=owners[0][0],
            fd=owners[0][1],
            peer_pid=peers[0][0] if peers else None,
            peer_fd=peers[0][1] if peers else None,
            peer_inode=one.peer_inode or None,
            recv_queue=float(one.receive_queue),
            # What the other end has not read; the kernel tells the sender only how much memory that takes.
            send_queue=0.0 if listens or other is None else float(other.receive_queue),
            backlog=one.receive_queue if listens else None,
            backlog_limit=one.send_queue if listens else None,
            inode=one.inode,
            netns=float(namespace),
            shared_with=tuple(pid for pid, _ in owners[1:]),
            accepted=bool(one.name) and not listens,
            lasting=lasting,
        )


def _connection(
    one: TcpSocket,
    owners: list[tuple[int, int]],
    other: TcpSocket | None,
    peers: list[tuple[int, int]],
    namespace: int,
    *,
    accepted: bool,
    lasting: bool,
) -> Socket:
    info = one.info
    last_in = last_out = opened = None
    if info is not None:
        # Until the first byte, the kernel counts these from the connection's start.
        sent = info.bytes_delivered if info.bytes_sent is None else info.bytes_sent
        last_in = float(info.last_data_received_ms) if info.bytes_received else None
        last_out = float(info.last_data_sent_ms) if sent else None
        if last_in is None:
            opened = float(info.last_data_received_ms)
        elif last_out is None:
            opened = float(info.last_data_sent_ms)
    return Socket(
        family="tcp",
        state=one.state,
        local=one.local,
        remote=one.remote,
        pid=owners[0][0] if owners else None,
        fd=owners[0][1] if owners else None,
        peer_pid=peers[0][0] if peers else None,
        peer_fd=peers[0][1] if peers else None,
        peer_inode=other.inode if other is not None else None,
        recv_queue=float(one.receive_queue),
        send_queue=float(one.send_queue),
        inode=one.inode,
        netns=float(namespace),
        shared_with=tuple(pid for pid, _ in owners[1:]),
        accepted=accepted,
        lasting=lasting,
        last_in_age_ms=last_in,
        last_out_age_ms=last_out,
        opened_age_ms=opened,
        last_ack_age_ms=None if info is None or one.state == SYN_SENT else float(info.last_ack_received_ms),
        bytes_in=None if info is None else float(info.bytes_received),
        bytes_out=None if info is None else float(info.bytes_delivered),
        retransmits_total=None if info is None else info.total_retransmits,
        retransmits_now=None if info is None else info.retransmits_now,
        unacked=None if info is None else info.unacked,
        unsent_bytes=None if info is None or info.unsent_bytes is None else float(info.unsent_bytes),
        rtt_ms=None if info is None else info.rtt_ms,
        peer_window_bytes=None if info is None or info.peer_window_bytes is None else float(info.peer_window_bytes),
    )


def _is_probe(one: TcpSocket) -> bool:
    return one.remote.startswith(f"{PROBE_SOURCE}:") or one.local.startswith(f"{PROBE_SOURCE}:")


def _unix_name(name: bytes) -> str:
    return escape(b"@" + name[1:] if name.startswith(b"\0") else name.rstrip(b"\0"), _NAME_BYTES)
