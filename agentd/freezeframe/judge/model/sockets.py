"""Sockets, the edges they make and the hops of the path."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Socket:
    """One socket of a watched process, or a connection that waits in its listener."""

    # "tcp" (v4 and v6) or "unix".
    family: str = ""
    # TCP state as ss spells it: LISTEN, ESTAB, CLOSE-WAIT, SYN-SENT ...; unix: LISTEN, ESTAB, UNCONN.
    state: str = ""
    # Local address: "127.0.0.1:30000", "[::1]:30000", a path or "@abstract"; escaped.
    local: str = ""
    # Remote address, same forms; empty when none.
    remote: str = ""
    # Owner; absent when no process has it open (it waits in an accept queue, or is closing).
    pid: int | None = None
    # The owner's descriptor.
    fd: int | None = None
    # Process at the other end when it is on this host.
    peer_pid: int | None = None
    # Bytes that arrived and were not read; for a listener the connections not yet accepted.
    recv_queue: float = 0.0
    # Bytes sent or waiting and not acknowledged (tcp) or not read by the peer (unix).
    send_queue: float = 0.0
    # LISTEN only: connections that wait to be accepted.
    backlog: int | None = None
    # Age of the last byte received, milliseconds; absent when none was.
    last_in_age_ms: float | None = None
    # Age of the last byte sent, milliseconds; absent when none was.
    last_out_age_ms: float | None = None
    # LISTEN only: size of the accept queue.
    backlog_limit: int | None = None
    # Inode of the socket; 0 once no process has it.
    inode: int = 0
    # Inode of the other end, when it is on this host.
    peer_inode: int | None = None
    # Descriptor at the other end.
    peer_fd: int | None = None
    # Inode of the network namespace.
    netns: float = 0.0
    # Bytes received since the connection began.
    bytes_in: float | None = None
    # Bytes acknowledged by the peer since the connection began.
    bytes_out: float | None = None
    # Bytes received between the looks; absent with one look.
    bytes_in_delta: float | None = None
    # Bytes acknowledged between the looks; absent with one look.
    bytes_out_delta: float | None = None
    # recv_queue at the second look; absent with one look.
    recv_queue_after: float | None = None
    # send_queue at the second look; absent with one look.
    send_queue_after: float | None = None
    # Segments retransmitted in all.
    retransmits_total: int | None = None
    # Unanswered retransmissions of the oldest segment now.
    retransmits_now: int | None = None
    # Segments retransmitted between the looks.
    retransmits_delta: int | None = None
    # Segments in flight and not acknowledged.
    unacked: int | None = None
    # Bytes in the send queue that were not sent yet.
    unsent_bytes: float | None = None
    # Smoothed round trip, milliseconds.
    rtt_ms: float | None = None
    # Other watched processes that have the same socket open.
    shared_with: tuple[int, ...] = ()
    # True for the end that accepted the connection, known where a listener on its local port is.
    accepted: bool = False
    # Milliseconds since anything was acknowledged.
    last_ack_age_ms: float | None = None
    # True when the socket was there at both looks, or when there was one look only.
    lasting: bool = False
    # Age of the connection, milliseconds: known only while one direction has carried no byte; absent otherwise.
    opened_age_ms: float | None = None
    # Window the peer offers, bytes: 0 means that the peer reads nothing.
    peer_window_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """All connections from one process (or address) to another, summed up."""

    # Client's pid; absent for a client on another host.
    client_pid: int | None = None
    # Client's address without port when it is on another host; empty otherwise.
    client_address: str = ""
    # Server's pid; absent when it is on another host.
    server_pid: int | None = None
    # Server's address with port.
    server_address: str = ""
    # Open connections.
    connections: int = 0
    # Connections on which the server owes the next byte.
    owed: int = 0
    # Age of the oldest of these, milliseconds (at least).
    oldest_owed_age_ms: float | None = None
    # Bytes towards the server between the looks; absent with one look.
    bytes_up_delta: float | None = None
    # Bytes towards the client between the looks; absent with one look.
    bytes_down_delta: float | None = None
    # Connections whose bytes towards the client moved between the looks.
    moving: int | None = None
    # Connections whose request the server has not read.
    unread_by_server: int = 0
    # Connections whose answer the client has not read.
    unread_by_client: int = 0
    # Connections half-closed by the server.
    closed_by_server: int = 0
    # Connections half-closed by the client.
    closed_by_client: int = 0
    # Connections that wait in the server's accept queue.
    in_backlog: int = 0
    # Of the live view: bytes per second towards the server.
    bytes_up_per_s: float | None = None
    # Of the live view: bytes per second towards the client.
    bytes_down_per_s: float | None = None
    # Of the live view: age of the last byte towards the client, milliseconds.
    last_down_age_ms: float | None = None
    # Of the live view: how long the request that has waited the longest has got no byte of its answer, milliseconds.
    longest_wait_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """One hop of the serving path: the processes of one role that do the same work."""

    # "client", "proxy", "router", "prefill", "decode", "engine", "scheduler" ...
    name: str = ""
    # Its processes.
    pids: tuple[int, ...] = ()
    # Requests that have come in and are not answered.
    in_flight: int = 0
    # Requests that it has passed on and that are not answered.
    upstream: int = 0
    # True when the principal verdict says that it holds the requests.
    holds: bool = False
    # Age of its oldest request in flight, milliseconds (at least).
    oldest_age_ms: float | None = None
    # Where its number comes from: "sockets", "gauges", "recorder".
    source: str = ""
    # Hops that it passes requests to.
    next: tuple[str, ...] = ()
