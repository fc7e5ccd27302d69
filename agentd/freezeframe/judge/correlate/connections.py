"""Both ends of every TCP connection of the path, joined, and who has to act next on each.

What tcp_info can say, from one look:
- server end with bytes in its receive queue: the server has not read them;
- server end with nothing unread whose last byte in is newer than its last byte out, or that never sent: the request
  was read, the answer is owed. A request of which only a part has arrived looks the same;
- client end whose last byte out is newer than its last byte in: it waits;
- client end with bytes in its receive queue: it has not read them;
- no owner and no inode at the server, and the listener has a backlog: not accepted;
- last byte out newer than last byte in at the server: an idle keep-alive, or a stream between two chunks.
Only two looks can tell these last two apart, by bytes that move. Debts and ages are those of the last look. A
connection that was there at one of two looks only has a debt of age 0: it can be in flight, never stuck.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from freezeframe.judge.correlate.addresses import LOOPBACK, host_of, plain, port_of
from freezeframe.judge.correlate.facts import Connection, Debt, Listener
from freezeframe.judge.correlate.thresholds import LEFTOVER_BYTES, PROBE_ADDRESS, STUCK_MS
from freezeframe.judge.model import Process, Socket

Role = Process.Role

SERVERS = frozenset({Role.ROUTER, Role.PROXY, Role.ENGINE_HTTP, Role.TOKENIZER_WORKER})
FORWARDERS = frozenset({Role.ROUTER, Role.PROXY})
ENGINE_PARTS = frozenset(
    {Role.ENGINE_HTTP, Role.TOKENIZER_WORKER, Role.SCHEDULER, Role.DETOKENIZER, Role.DP_CONTROLLER, Role.WORKER}
)

_OPEN = frozenset({"ESTAB", "CLOSE-WAIT", "FIN-WAIT-1", "FIN-WAIT-2", "SYN-SENT", "CLOSING", "LAST-ACK"})
# The own side is closed.
_CLOSED = frozenset({"FIN-WAIT-1", "FIN-WAIT-2", "CLOSING", "LAST-ACK"})


@dataclass(frozen=True, slots=True)
class _End:
    index: int
    socket: Socket


def find_listeners(sockets: Sequence[Socket], processes: dict[int, Process]) -> tuple[Listener, ...]:
    """Listening TCP sockets of processes of the path."""
    found = []
    for index, socket in enumerate(sockets):
        if socket.family != "tcp" or socket.state != "LISTEN" or socket.pid is None:
            continue
        process = processes.get(socket.pid)
        if process is None or process.role not in SERVERS:
            continue
        backlog = socket.backlog if socket.backlog is not None else int(socket.recv_queue)
        found.append(
            Listener(
                pid=socket.pid,
                address=socket.local,
                port=port_of(socket.local),
                index=index,
                backlog=backlog,
                backlog_after=None if socket.recv_queue_after is None else int(socket.recv_queue_after),
                limit=socket.backlog_limit,
            )
        )
    return tuple(found)


def join_connections(
    sockets: Sequence[Socket], processes: dict[int, Process], listeners: Sequence[Listener], window_ms: float
) -> tuple[Connection, ...]:
    """Join the ends and say who owes; connections inside and between engines are left out.

    Ends belong together as the agent joined them, across network namespaces and published ports; else by address pair.
    """
    by_port = {(sockets[listener.index].netns, listener.port): listener for listener in listeners}
    ends: dict[tuple[float, str, str], _End] = {}
    for index, socket in enumerate(sockets):
        if socket.family == "tcp" and socket.state in _OPEN:
            ends[socket.netns, plain(socket.local), plain(socket.remote)] = _End(index, socket)
    by_inode = {end.socket.inode: end for end in ends.values() if end.socket.inode}
    # An end that waits to be accepted has no inode, but knows that of its peer.
    by_peer = {end.socket.peer_inode: end for end in ends.values() if end.socket.peer_inode}
    pairs = Counter((local, remote) for _, local, remote in ends)
    by_pair = {
        (local, remote): end
        for (_, local, remote), end in ends.items()
        # Private addresses of containers may be the same on several hosts.
        if not local.startswith(LOOPBACK) and pairs[local, remote] == 1
    }
    connections = []
    for (netns, local, remote), end in ends.items():
        other = (
            by_inode.get(end.socket.peer_inode or 0)
            or by_peer.get(end.socket.inode)
            or ends.get((netns, remote, local))
            or by_pair.get((remote, local))
        )
        if _is_server(end.socket, other, by_port):
            connection = _join(other, end, by_port.get((netns, port_of(local))), processes, window_ms)
        elif other is None:
            connection = _join(end, None, None, processes, window_ms)
        else:
            continue  # the other end of this one is, or was, the server
        if connection is not None:
            connections.append(connection)
    return tuple(connections)


def _is_server(socket: Socket, other: _End | None, by_port: dict[tuple[float, int], Listener]) -> bool:
    if socket.accepted:
        return True
    if other is not None and other.socket.accepted:
        return False
    if (socket.netns, port_of(socket.local)) in by_port:
        return True
    # No listener was seen: ephemeral ports are high.
    return other is not None and port_of(socket.local) < port_of(other.socket.local)


def _join(
    client: _End | None,
    server: _End | None,
    listener: Listener | None,
    processes: dict[int, Process],
    window_ms: float,
) -> Connection | None:
    c = client.socket if client else None
    s = server.socket if server else None
    server_pid = (s.pid if s else None) or (c.peer_pid if c else None)
    if server_pid is None and listener is not None:
        server_pid = listener.pid
    client_pid = (c.pid if c else None) or (s.peer_pid if s else None)
    address = host_of(s.remote if s else c.local if c else "")
    if address == PROBE_ADDRESS:
        return None
    if not _on_path(processes.get(client_pid or 0), processes.get(server_pid or 0)):
        return None
    debt, agreed = _debt(c, s, listener)
    up = _first(s and s.bytes_in_delta, c and c.bytes_out_delta)
    down = _first(c and c.bytes_in_delta, s and s.bytes_out_delta)
    # Seen at one of two looks only: it is new, or it is gone.
    passing = window_ms > 0 and not all(end.lasting for end in (c, s) if end is not None)
    ages = (age for end in (c, s) if end for age in (end.last_in_age_ms, end.last_out_age_ms))
    return Connection(
        client_pid=client_pid,
        client_address=address,
        server_pid=server_pid,
        server_address=plain(s.local if s else c.remote if c else ""),
        client_index=client.index if client else None,
        server_index=server.index if server else None,
        debt=debt,
        age_ms=0.0 if passing else _age(debt, c, s),
        quiet_ms=0.0 if passing else _least(*ages),
        last_down_ms=_first(c and c.last_in_age_ms, s and s.last_out_age_ms),
        bytes_up_delta=up,
        bytes_down_delta=down,
        agreed=agreed,
        closed_by_server=bool((c and c.state == "CLOSE-WAIT") or (s and s.state in _CLOSED)),
        closed_by_client=bool((s and s.state == "CLOSE-WAIT") or (c and c.state in _CLOSED)),
        untaken=debt is Debt.UNDELIVERED and _untaken(c, s, window_ms),
    )


def _on_path(client: Process | None, server: Process | None) -> bool:
    if client is not None and client.role in ENGINE_PARTS:
        return False  # ranks, schedulers, bootstrap and KV transfer: not requests
    if server is not None:
        return server.role in SERVERS
    return client is not None and client.role in FORWARDERS


def _debt(c: Socket | None, s: Socket | None, listener: Listener | None) -> tuple[Debt, bool]:  # noqa: PLR0911
    """Who has to act, and whether both ends were seen and agree."""
    if c is not None and c.state == "SYN-SENT":
        return Debt.CONNECTING, False
    if s is not None and s.state == "CLOSE-WAIT" and (c is None or not c.inode):
        return Debt.NONE, c is not None  # the client is gone: nobody waits
    if c is not None and _unread(c) > 0 and not _leftover(c, s):
        return Debt.UNDELIVERED, s is not None
    if c is None and s is not None and _unsent(s) > 0 and s.peer_window_bytes == 0:
        return Debt.UNDELIVERED, False
    if s is None:
        return (Debt.ANSWER if _waits(c) and c is not None and c.state == "ESTAB" else Debt.NONE), False
    if s.pid is None and not s.inode and s.state in {"ESTAB", "CLOSE-WAIT"}:
        waiting = listener is not None and (listener.backlog > 0 or bool(listener.backlog_after))
        # A connection without a request waits for nothing yet.
        asked = bool(s.bytes_in or s.last_in_age_ms is not None or _waits(c))
        return (Debt.UNACCEPTED if waiting and asked else Debt.NONE), c is not None
    if s.state not in {"ESTAB", "CLOSE-WAIT"} or (c is not None and c.state == "CLOSE-WAIT"):
        return Debt.NONE, c is not None
    return _server_debt(c, s)


def _server_debt(c: Socket | None, s: Socket) -> tuple[Debt, bool]:
    """The debt of a connection that the server has accepted and that is open."""
    waits = _waits(c)
    if _unread(s) > 0:
        return Debt.UNREAD, bool(waits)
    owed = _answer_owed(s)
    if c is None or waits is None or owed is None:
        return (Debt.ANSWER if owed or (owed is None and waits) else Debt.NONE), False
    if owed != waits:
        return Debt.UNKNOWN, False  # bytes crossed between the two reads
    return (Debt.ANSWER if owed else Debt.NONE), True


def _unread(socket: Socket) -> float:
    """Bytes that the owner has not read at the last look."""
    return socket.recv_queue if socket.recv_queue_after is None else socket.recv_queue_after


def _leftover(c: Socket, s: Socket | None) -> bool:
    """Whether this is the end of an answer that its client has seen enough of: few bytes, old, nothing behind them."""
    old = c.last_in_age_ms is not None and c.last_in_age_ms >= STUCK_MS
    return c.state == "ESTAB" and old and _unread(c) < LEFTOVER_BYTES and (s is None or not _unsent(s))


def _unsent(socket: Socket) -> float:
    return socket.send_queue if socket.send_queue_after is None else socket.send_queue_after


def _answer_owed(server: Socket) -> bool | None:
    """Whether the server owes; None when the ages are equal."""
    if server.last_in_age_ms is None:
        return False
    if server.last_out_age_ms is None:
        return True
    if server.last_in_age_ms == server.last_out_age_ms:
        return None
    return server.last_in_age_ms < server.last_out_age_ms


def _waits(client: Socket | None) -> bool | None:
    """Whether the client waits for an answer; None when it was not seen or the ages are equal."""
    if client is None:
        return None
    if client.last_out_age_ms is None:
        return False
    if client.last_in_age_ms is None:
        return True
    if client.last_in_age_ms == client.last_out_age_ms:
        return None
    return client.last_out_age_ms < client.last_in_age_ms


def _age(debt: Debt, c: Socket | None, s: Socket | None) -> float | None:
    """For how long the debt has stood at the last look, at least."""
    if debt is Debt.CONNECTING:
        return c.opened_age_ms if c else None
    if debt in {Debt.UNREAD, Debt.ANSWER, Debt.UNACCEPTED}:
        return _first(s and s.last_in_age_ms, c and c.last_out_age_ms)
    if debt is Debt.UNDELIVERED:
        return _first(c and c.last_in_age_ms, s and s.last_out_age_ms)
    return None


def _untaken(c: Socket | None, s: Socket | None, window_ms: float) -> bool:
    """Whether the client took nothing: for a whole window, or for STUCK_MS since the last byte came."""
    if c is not None:
        if window_ms <= 0:
            return c.last_in_age_ms is not None and c.last_in_age_ms >= STUCK_MS
        if not c.lasting or c.recv_queue_after is None or c.bytes_in_delta is None:
            return False
        return c.recv_queue + c.bytes_in_delta - c.recv_queue_after <= 0
    if s is None or s.peer_window_bytes != 0:
        return False
    if window_ms <= 0:
        return s.last_ack_age_ms is not None and s.last_out_age_ms is not None and s.last_out_age_ms >= STUCK_MS
    return s.lasting and bool(s.send_queue_after) and not s.bytes_out_delta


def _first(*values: float | Socket | None) -> float | None:
    """The first that is known. `end and end.field` is None or the field: a Socket is never falsy."""
    return next((value for value in values if isinstance(value, (int, float))), None)


def _least(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)
