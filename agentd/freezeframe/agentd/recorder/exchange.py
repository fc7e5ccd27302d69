"""What is in flight on one connection, from its entry in the ledger and the heads that were parsed. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from freezeframe.agentd.bpf import layout
from freezeframe.agentd.bpf.layout import Connection, Stream
from freezeframe.agentd.recorder.heads import RequestHead, ResponseHead

_PROTOCOLS = {
    layout.UNKNOWN: "unknown",
    layout.HTTP1: "http/1.1",
    layout.HTTP2: "h2",
    layout.TLS: "tls",
    layout.UPGRADED: "websocket",
}
# How a chunked message ends; the chunk before it, or the head, ends with a line end, too.
_LAST_CHUNK = b"\r\n0\r\n\r\n"
_NO_BODY = (204, 304)
_NO_REQUEST = RequestHead()
_NO_RESPONSE = ResponseHead()


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Heads of one connection, parsed, with the numbers of the messages that they belong to."""

    request: RequestHead = _NO_REQUEST
    request_number: int = 0
    # Heads behind the first one in the same bytes.
    more_requests: int = 0
    response: ResponseHead = _NO_RESPONSE
    response_number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """One request in flight as one process sees it. Times are CLOCK_MONOTONIC nanoseconds, 0 = never."""

    pid: int
    fd: int
    # "server" or "client".
    side: str
    # "http/1.1", "h2", "tls", "websocket".
    protocol: str
    method: str = ""
    path: str = ""
    request_id: str = ""
    status: int = 0
    began_ns: int
    # Whether it may have begun earlier.
    at_least: bool = False
    in_bytes: int
    out_bytes: int
    last_in_ns: int
    last_out_ns: int
    # The answer has begun and has not ended.
    streaming: bool = False
    # The request itself has not come, or gone, as a whole.
    arriving: bool = False
    # The other side has closed, or the connection is broken.
    peer_closed: bool = False
    # When the other side closed.
    closed_ns: int = 0


def flights(connection: Connection, known: Known, streams: Iterable[Stream]) -> list[Flight]:
    """All requests in flight on a connection; of `tls` at most one, for the connection as a whole."""
    c = connection
    if c.side == layout.NO_SIDE:
        return []
    if c.protocol == layout.HTTP2:
        return [
            _flight(c, began_ns=each.opened_ns, streaming=each.answered_ns > 0) for each in streams if each.opened_ns
        ]
    if c.protocol == layout.UPGRADED:
        return [_of_request(c, known, streaming=True)]
    if c.protocol == layout.TLS:
        asking = layout.IN if c.side == layout.SERVER else layout.OUT
        return [_flight(c, began_ns=c.turn_ns)] if c.direction == asking else []
    return _http1(c, known) if c.protocol == layout.HTTP1 else []


def _http1(c: Connection, known: Known) -> list[Flight]:
    if not c.requests:
        # Its request came before anything watched; the answer may still go on.
        going_on = c.responses > 0 and not answered(c, known)
        return [_of_request(c, known, began_ns=c.response_ns, at_least=True, streaming=True)] if going_on else []
    if not c.response_ns:
        return [_of_request(c, known, arriving=not _request_is_whole(c, known))]
    if not answered(c, known):
        return [_of_request(c, known, streaming=True)]
    return [_of_request(c, known, status=0)] if _asked(c, known) > c.answers and _ends_there(c, known) else []


def _ends_there(c: Connection, known: Known) -> bool:
    """Whether the last bytes that were sent are the end of the last answer: no further answer came in the same call."""
    length = known.response.content_length
    return length is not None and _sent(c) == known.response.head_bytes + length


def _sent(c: Connection) -> int:
    """Bytes of the last answer."""
    return (c.out_bytes if c.side == layout.SERVER else c.in_bytes) - c.response_at


def answered(c: Connection, known: Known) -> bool:
    """Whether the last answer that began has ended, as far as its head tells."""
    if known.response_number != c.responses or not known.response.head_bytes:
        # Nothing is known of its length: only what looks unfinished for certain is called so.
        return True
    response = known.response
    method = known.request.method if known.request_number == c.requests else ""
    if response.status in _NO_BODY or method == "HEAD" or 100 <= response.status < 200:  # noqa: PLR2004
        return True
    answering = layout.OUT if c.side == layout.SERVER else layout.IN
    tail = c.out_tail if answering == layout.OUT else c.in_tail
    if response.chunked:
        return _ends_chunks(tail) is not False
    if response.content_length is not None:
        return _sent(c) >= response.head_bytes + response.content_length
    # Ends with the connection.
    over = layout.SHUT_OUT if answering == layout.OUT else layout.END_OF_INPUT
    return bool(c.flags & (over | layout.BROKEN))


def _ends_chunks(tail: bytes) -> bool | None:
    """Whether these last bytes of a message end its last chunk; None where they could not be read."""
    last = tail[-len(_LAST_CHUNK) :]
    return None if layout.UNKNOWN_SIGN in last else last == _LAST_CHUNK


def rests(c: Connection, known: Known) -> bool:
    """Whether nothing is in flight for certain: every request since its start is answered to the end."""
    if c.protocol != layout.HTTP1 or c.side == layout.NO_SIDE or c.flags & (layout.HEAD_GAP | layout.NO_FREE_HEAD):
        return False
    if not c.requests or c.responses != c.requests or known.response_number != c.responses:
        return False
    if known.response.chunked and not _ends_chunks(c.out_tail if c.side == layout.SERVER else c.in_tail):
        return False
    return bool(known.response.head_bytes) and answered(c, known) and _asked(c, known) <= c.responses


def _asked(c: Connection, known: Known) -> int:
    """Count the current request and those pipelined behind it whose place shows that they are no part of its body."""
    asked = 1
    if known.request_number == c.requests:
        asked += known.more_requests
        head = known.request
        if c.pipelined and head.head_bytes and not head.chunked:
            whole = head.head_bytes + (head.content_length or 0)
            asked += c.pipelined if c.last_head_at >= whole else 0
    return asked


def _request_is_whole(c: Connection, known: Known) -> bool:
    if known.request_number != c.requests:
        return True
    head = known.request
    if not head.head_bytes:
        # The head went on behind what is kept, or its rest has not come.
        sent = (c.in_bytes - c.request_in) if c.side == layout.SERVER else (c.out_bytes - c.request_out)
        return sent >= layout.HEAD_BYTES
    sent = (c.in_bytes - c.request_in) if c.side == layout.SERVER else (c.out_bytes - c.request_out)
    if head.chunked:
        return _ends_chunks(c.in_tail if c.side == layout.SERVER else c.out_tail) is not False
    return sent >= head.head_bytes + (head.content_length or 0)


def _of_request(
    c: Connection,
    known: Known,
    *,
    began_ns: int = 0,
    at_least: bool = False,
    streaming: bool = False,
    arriving: bool = False,
    status: int | None = None,
) -> Flight:
    head = known.request if known.request_number == c.requests else _NO_REQUEST
    answer = known.response if known.response_number == c.responses else _NO_RESPONSE
    return _flight(
        c,
        began_ns=began_ns or c.request_ns,
        at_least=at_least,
        streaming=streaming,
        arriving=arriving,
        status=c.status if status is None else status,
        method=head.method,
        path=head.path,
        request_id=head.request_id or (answer.request_id if c.response_ns else ""),
        in_bytes=c.in_bytes - c.request_in,
        out_bytes=c.out_bytes - c.request_out,
    )


def _flight(
    c: Connection,
    *,
    began_ns: int,
    at_least: bool = False,
    streaming: bool = False,
    arriving: bool = False,
    status: int = 0,
    method: str = "",
    path: str = "",
    request_id: str = "",
    in_bytes: int | None = None,
    out_bytes: int | None = None,
) -> Flight:
    return Flight(
        pid=c.tgid,
        fd=c.fd,
        side="server" if c.side == layout.SERVER else "client",
        protocol=_PROTOCOLS.get(c.protocol, "unknown"),
        method=method,
        path=path,
        request_id=request_id,
        status=status,
        began_ns=began_ns,
        at_least=at_least,
        in_bytes=c.in_bytes if in_bytes is None else in_bytes,
        out_bytes=c.out_bytes if out_bytes is None else out_bytes,
        last_in_ns=c.in_ns,
        last_out_ns=c.out_ns,
        streaming=streaming,
        arriving=arriving,
        peer_closed=bool(c.flags & (layout.END_OF_INPUT | layout.BROKEN)),
        closed_ns=c.ended_ns,
    )
