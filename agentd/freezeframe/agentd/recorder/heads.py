"""The head of an HTTP/1.x message: what may be kept of it, and nothing else.

Kept: method, path without its query, status, content-length, transfer-encoding, expect, request ids. Every other header
and every body byte is dropped here. Pure; takes any bytes, never raises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# In the order in which one is chosen as the request's id.
ID_HEADERS = (b"x-request-id", b"x-correlation-id", b"x-trace-id", b"request-id", b"traceparent")
_METHODS = (b"GET", b"PUT", b"POST", b"HEAD", b"PATCH", b"DELETE", b"OPTIONS", b"CONNECT", b"TRACE")
_MAX_PATH = 256
_MAX_ID = 128
_AUTHORITY = re.compile(rb"^[a-zA-Z][a-zA-Z0-9+.-]*://[^/?#]*")
_ID = re.compile(rb"^[\x21-\x7e]{1,128}$")
_TRACE = re.compile(rb"^[0-9a-f]{2}-([0-9a-f]{32})-")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHead:
    """What is kept of a request."""

    method: str = ""
    # Without query and fragment; escaped.
    path: str = ""
    # Empty when none of the id headers was seen.
    request_id: str = ""
    # None when absent.
    content_length: int | None = None
    chunked: bool = False
    expects_continue: bool = False
    # Bytes up to and with the blank line; 0 when it was not in what was seen.
    head_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseHead:
    """What is kept of an answer."""

    status: int = 0
    request_id: str = ""
    content_length: int | None = None
    chunked: bool = False
    head_bytes: int = 0


def request_head(data: bytes) -> RequestHead:
    """Parse the first bytes of a request."""
    line, fields, head_bytes = _split(data)
    method, _, rest = line.partition(b" ")
    if method not in _METHODS:
        return RequestHead()
    target, _, version = rest.partition(b" ")
    # A line that is cut may end inside a query, never before it.
    path = _AUTHORITY.sub(b"", target) if method != b"CONNECT" else b""
    path = re.split(rb"[?#]", path, maxsplit=1)[0]
    del version
    return RequestHead(
        method=method.decode("ascii"),
        path=_text(path[:_MAX_PATH]),
        request_id=_request_id(fields),
        content_length=_number(fields.get(b"content-length")),
        chunked=_chunked(fields),
        expects_continue=fields.get(b"expect", b"").lower() == b"100-continue",
        head_bytes=head_bytes,
    )


def response_head(data: bytes) -> ResponseHead:
    """Parse the first bytes of an answer."""
    line, fields, head_bytes = _split(data)
    match = re.match(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: |$)", line)
    if match is None:
        return ResponseHead()
    return ResponseHead(
        status=int(match[1]),
        request_id=_request_id(fields),
        content_length=_number(fields.get(b"content-length")),
        chunked=_chunked(fields),
        head_bytes=head_bytes,
    )


def request_heads_in(data: bytes) -> int:
    """Count the requests that begin in these bytes, one behind the other: pipelined ones in one read."""
    count, at = 0, 0
    while at < len(data):
        head = request_head(data[at:])
        if not head.method:
            break
        count += 1
        if not head.head_bytes or head.chunked:
            break
        at += head.head_bytes + (head.content_length or 0)
    return count


def _split(data: bytes) -> tuple[bytes, dict[bytes, bytes], int]:
    """Give start line, header fields by lower-case name, and where the body begins (0 = not seen)."""
    end = data.find(b"\r\n\r\n")
    head = data if end < 0 else data[:end]
    lines = head.split(b"\r\n")
    if end < 0 and len(lines) > 1:
        lines.pop()  # cut: half a value is no value
    fields: dict[bytes, bytes] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if colon:
            fields.setdefault(name.strip().lower(), value.strip())
    return lines[0], fields, 0 if end < 0 else end + 4


def _request_id(fields: dict[bytes, bytes]) -> str:
    for name in ID_HEADERS:
        value = fields.get(name, b"")
        if name == b"traceparent":
            match = _TRACE.match(value)
            value = match[1] if match else b""
        if len(value) <= _MAX_ID and _ID.match(value):
            return value.decode("ascii")
    return ""


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) < 16 else None  # noqa: PLR2004


def _chunked(fields: dict[bytes, bytes]) -> bool:
    return fields.get(b"transfer-encoding", b"").lower().endswith(b"chunked")


def _text(data: bytes) -> str:
    return "".join(chr(b) if 0x21 <= b < 0x7F else f"\\x{b:02x}" for b in data)  # noqa: PLR2004
