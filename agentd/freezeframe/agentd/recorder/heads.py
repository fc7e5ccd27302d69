"""The head of an HTTP/1.x message: what may be kept of it, and nothing else.

Kept: method, path without its query, status, content-length, transfer-encoding, expect, request ids. Every other header
and every body byte is left where it is: the patterns look at a buffer in place (the mapped one of the kernel's map), so
that no copy of anything else comes into this process's memory. Pure; takes any bytes, never raises.
"""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass

Buffer = bytes | bytearray | mmap.mmap

# In the order in which one is chosen as the request's id.
ID_HEADERS = ("x-request-id", "x-correlation-id", "x-trace-id", "request-id", "traceparent")
_MAX_PATH = 256

# Method, then of an absolute target its scheme and authority, then the path. A line that is cut may end in a query.
_REQUEST = re.compile(
    rb"(GET|PUT|POST|HEAD|PATCH|DELETE|OPTIONS|CONNECT|TRACE) "
    rb"(?:[a-zA-Z][a-zA-Z0-9+.-]{0,15}://[^/?# \r\n]*)?([^ ?#\r\n]*)"
)
_RESPONSE = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})[ \r]")
# One line each, whole: half a value is no value.
_LENGTH = re.compile(rb"(?i)\r\ncontent-length:[ \t]*([0-9]{1,15})[ \t]*\r\n")
_CHUNKED = re.compile(rb"(?i)\r\ntransfer-encoding:[^\r\n]*chunked[ \t]*\r\n")
_EXPECT = re.compile(rb"(?i)\r\nexpect:[ \t]*100-continue[ \t]*\r\n")
_IDS = tuple(
    re.compile(rb"(?i)\r\n%b:[ \t]*%b[ \t]*\r\n" % (name.encode(), value))
    for name, value in (
        *((name, rb"([\x21-\x7e]{1,128})") for name in ID_HEADERS[:-1]),
        # Of a trace parent the trace's id.
        (ID_HEADERS[-1], rb"[0-9a-f]{2}-([0-9a-f]{32})-[\x21-\x7e]*"),
    )
)
_BLANK = b"\r\n\r\n"


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


def request_head(data: Buffer, begin: int = 0, end: int | None = None) -> RequestHead:
    """Parse the first bytes of a request, those from `begin` to `end`."""
    end = len(data) if end is None else end
    start = _REQUEST.match(data, begin, end)
    if start is None:
        return RequestHead()
    method = start[1].decode("ascii")
    head_bytes, fields_end = _extent(data, begin, end)
    path = b"" if method == "CONNECT" else data[start.start(2) : min(start.end(2), start.start(2) + _MAX_PATH)]
    return RequestHead(
        method=method,
        path=_text(path),
        request_id=_request_id(data, begin, fields_end),
        content_length=_content_length(data, begin, fields_end),
        chunked=_CHUNKED.search(data, begin, fields_end) is not None,
        expects_continue=_EXPECT.search(data, begin, fields_end) is not None,
        head_bytes=head_bytes,
    )


def response_head(data: Buffer, begin: int = 0, end: int | None = None) -> ResponseHead:
    """Parse the first bytes of an answer, those from `begin` to `end`."""
    end = len(data) if end is None else end
    start = _RESPONSE.match(data, begin, end)
    if start is None:
        return ResponseHead()
    head_bytes, fields_end = _extent(data, begin, end)
    return ResponseHead(
        status=int(start[1]),
        request_id=_request_id(data, begin, fields_end),
        content_length=_content_length(data, begin, fields_end),
        chunked=_CHUNKED.search(data, begin, fields_end) is not None,
        head_bytes=head_bytes,
    )


def request_heads_in(data: Buffer, begin: int = 0, end: int | None = None) -> int:
    """Count the requests that begin in these bytes, one behind the other: pipelined ones in one read."""
    end = len(data) if end is None else end
    count, at = 0, begin
    while at < end:
        head = request_head(data, at, end)
        if not head.method:
            break
        count += 1
        if not head.head_bytes or head.chunked:
            break
        at += head.head_bytes + (head.content_length or 0)
    return count


def _extent(data: Buffer, begin: int, end: int) -> tuple[int, int]:
    """Give the length of the head with its blank line (0 = not seen), and where its last whole field ends."""
    blank = data.find(_BLANK, begin, end)
    return (blank + 4 - begin, blank + 2) if blank >= 0 else (0, end)


def _request_id(data: Buffer, begin: int, end: int) -> str:
    for pattern in _IDS:
        match = pattern.search(data, begin, end)
        if match is not None:
            return match[1].decode("ascii")
    return ""


def _content_length(data: Buffer, begin: int, end: int) -> int | None:
    match = _LENGTH.search(data, begin, end)
    return None if match is None else int(match[1])


def _text(data: bytes | bytearray) -> str:
    return "".join(chr(b) if 0x21 <= b < 0x7F else f"\\x{b:02x}" for b in data)  # noqa: PLR2004
