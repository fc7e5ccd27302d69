"""Requests: which are the same, which are gone, which are new.

The same request has the same connection (addresses and socket), and one of these proves that it is no later one there:
its id, no byte towards the server in between, or an age that reaches back to the older snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from freezeframe.client.compare.model import RequestChange
from freezeframe.client.compare.side import Side, is_another, tie
from freezeframe.client.render.values import enum_name
from freezeframe.v1 import process_pb2, request_pb2, socket_pb2

# Ages are those of looks that take their time.
_SLACK_MS = 1_000.0
_SERVER = request_pb2.Request.Side.SERVER
_Role = process_pb2.Process.Role
# Who passes requests on: what they send is somebody else's.
_BETWEEN = frozenset({
    _Role.PROXY, _Role.ROUTER, _Role.ENGINE_HTTP, _Role.SCHEDULER, _Role.DETOKENIZER, _Role.DP_CONTROLLER,
    _Role.TOKENIZER_WORKER, _Role.WORKER,
})  # fmt: skip

Request = request_pb2.Request
Key = tuple[object, ...]


def compare(before: Side, after: Side, elapsed_ms: float) -> tuple[RequestChange, ...]:
    """Compare the requests of two snapshots of one boot."""
    left, right = list(before.snapshot.requests), list(after.snapshot.requests)
    changes: list[RequestChange] = []
    # Where one of them lacks the socket of a request, its descriptor has to do.
    for key in (_connection, _descriptor):
        older, newer = _grouped(before, left, key), _grouped(after, right, key)
        paired: set[int] = set()
        for name, requests in older.items():
            for first, second in _pairs(requests, newer.get(name, [])):
                known = _socket(before, first) is not None and _socket(after, second) is not None
                if key is _descriptor and known:
                    continue
                state = _relation(before, after, first, second, elapsed_ms)
                if state != "different":
                    paired |= {id(first), id(second)}
                    changes.append(_both(before, after, first, second, state))
        left = [each for each in left if id(each) not in paired]
        right = [each for each in right if id(each) not in paired]
    changes += [_single(before, after, each, "gone") for each in left]
    changes += [_single(after, before, each, "new") for each in right]
    return tuple(changes)


def of_client(side: Side, request: Request) -> bool:
    """Say whether a client sent it."""
    server = request.side == _SERVER
    if not server and not request.HasField("pid"):
        return True
    sender = request.peer_pid if server and request.HasField("peer_pid") else 0 if server else request.pid
    known = side.processes.get(sender)
    return known is None or known.role not in _BETWEEN


def _grouped(
    side: Side, requests: Iterable[Request], key: Callable[[Side, Request], Key | None]
) -> dict[Key, list[Request]]:
    found: dict[Key, list[Request]] = {}
    for request in requests:
        if (name := key(side, request)) is not None:
            found.setdefault(name, []).append(request)
    return found


def _connection(side: Side, request: Request) -> Key | None:
    """Name the connection alike from both of its ends: in between the server may have read what the client sent."""
    socket = _socket(side, request)
    if socket is None or socket.family != "tcp" or not socket.remote:
        return None
    _, netns, local, remote = tie(socket)
    return (netns, frozenset({local, remote}))


def _descriptor(side: Side, request: Request) -> Key | None:
    if not request.HasField("pid"):
        return (request.request_id,)
    return (*side.program(request.pid), request.fd, request.side)


def _socket(side: Side, request: Request) -> socket_pb2.Socket | None:
    return side.socket_of.get((request.pid, request.fd)) if request.HasField("pid") else None


def _pairs(left: list[Request], right: list[Request]) -> Iterable[tuple[Request, Request]]:
    """Pair by id first, then oldest with oldest: several requests on one connection are streams of HTTP/2."""
    left, right = sorted(left, key=lambda r: -r.age_ms), sorted(right, key=lambda r: -r.age_ms)
    pairs = []
    for first in left:
        second = next((each for each in right if first.request_id and each.request_id == first.request_id), None)
        if second is not None:
            right.remove(second)
            pairs.append((first, second))
    taken = {id(first) for first, _ in pairs}
    return (*pairs, *zip([first for first in left if id(first) not in taken], right, strict=False))


def _relation(before: Side, after: Side, first: Request, second: Request, elapsed_ms: float) -> str:
    """Tell "same", "different" or "unclear"."""
    if first.request_id and second.request_id and first.request_id != second.request_id:
        return "different"
    if not _same_program(before, after, first, second):
        return "different"
    pair = _same_socket(before, after, first)
    if pair is not None and is_another(*pair):
        return "different"
    reaches_back = second.age_ms >= elapsed_ms - _SLACK_MS
    if not second.at_least and not reaches_back:
        return "different"
    up = _moved_up(first, pair)
    if reaches_back or up == 0 or (first.request_id and first.request_id == second.request_id):
        return "same"
    # A socket's age is that of the last byte of a request: a later byte is a later request, or the rest of this one.
    return "different" if up else "unclear"


def _same_program(before: Side, after: Side, first: Request, second: Request) -> bool:
    if not (first.HasField("pid") and second.HasField("pid")) or first.pid != second.pid:
        return True
    older, newer = before.program(first.pid)[1], after.program(second.pid)[1]
    return not older or not newer or older == newer


def _same_socket(before: Side, after: Side, request: Request) -> tuple[socket_pb2.Socket, socket_pb2.Socket] | None:
    socket = _socket(before, request)
    later = after.sockets.get(tie(socket)) if socket is not None else None
    return (socket, later) if socket is not None and later is not None else None


def _moved_up(request: Request, pair: tuple[socket_pb2.Socket, socket_pb2.Socket] | None) -> float | None:
    """Bytes towards the server between the snapshots."""
    field = "bytes_in" if request.side == _SERVER else "bytes_out"
    return _grown(pair, field)


def _grown(pair: tuple[socket_pb2.Socket, socket_pb2.Socket] | None, field: str) -> float | None:
    if pair is None or not all(each.HasField(field) for each in pair):  # type: ignore[arg-type]  # one of the two above
        return None
    return float(getattr(pair[1], field) - getattr(pair[0], field))


def _both(before: Side, after: Side, first: Request, second: Request, state: str) -> RequestChange:
    pair = _same_socket(before, after, first)
    grown = [_grown(pair, field) for field in ("bytes_in", "bytes_out")]
    moved = sum(abs(each or 0.0) for each in grown) if None not in grown else None
    why = "its connection is the same; whether it carries a later request cannot be told" if state == "unclear" else ""
    return _change(after, second, first, state, before_ms=first.age_ms, after_ms=second.age_ms, moved=moved, why=why)


def _single(own: Side, other: Side, request: Request, state: str) -> RequestChange:
    """A request that only `own` has: gone or new where `other` would show it."""
    why = _unseen(own, other, request)
    ages = {"before_ms": request.age_ms} if state == "gone" else {"after_ms": request.age_ms}
    if why:
        return _change(own, request, request, "unclear", why=why, **ages)
    ended = request.HasField("pid") and _ended(own, other, request.pid)
    gone_with = "its process has ended or is no part of the path any more" if ended and state == "gone" else ""
    return _change(own, request, request, state, why=gone_with, **ages)


def _ended(own: Side, other: Side, pid: int) -> bool:
    known = other.processes.get(pid)
    started, now = own.program(pid)[1], other.program(pid)[1]
    return known is None or bool(started and now and started != now)


def _unseen(own: Side, other: Side, request: Request) -> str:
    """Either end would show it."""
    why = other.unseen("requests", request.pid if request.HasField("pid") else None)
    if why and request.HasField("peer_pid") and request.peer_pid in other.processes:
        same = not _ended(own, other, request.peer_pid)
        return why if not same or other.unseen("requests", request.peer_pid) else ""
    return why


def _change(
    side: Side,
    request: Request,
    other: Request,
    state: str,
    *,
    before_ms: float | None = None,
    after_ms: float | None = None,
    moved: float | None = None,
    why: str = "",
) -> RequestChange:
    has_pid = request.HasField("pid")
    return RequestChange(
        state=state,
        pid=request.pid if has_pid else None,
        fd=request.fd if request.HasField("fd") else None,
        hop=side.hop_of.get(request.pid, "") if has_pid else "",
        side=enum_name(request, "side").lower(),
        peer_pid=request.peer_pid if request.HasField("peer_pid") else None,
        peer_address=request.peer_address,
        request_id=request.request_id or other.request_id,
        method=request.method or other.method,
        path=request.path or other.path,
        of_client=of_client(side, request),
        age_before_ms=before_ms,
        age_after_ms=after_ms,
        bytes_moved=moved,
        why=why,
    )
