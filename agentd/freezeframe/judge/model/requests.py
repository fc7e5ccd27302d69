"""Requests in flight."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request in flight, as one process sees it."""

    class Side(Enum):
        """Which end of the connection the process is."""

        UNSPECIFIED = 0
        SERVER = 1
        CLIENT = 2

    # The process; absent when the request is known from a log alone.
    pid: int | None = None
    # Its descriptor.
    fd: int | None = None
    # Its side.
    side: Side = Side.UNSPECIFIED
    # Method; empty when unknown.
    method: str = ""
    # Path without query string; empty when unknown.
    path: str = ""
    # Request id from a request-id header or the router's log; empty when unknown.
    request_id: str = ""
    # Time since the request began, milliseconds.
    age_ms: float = 0.0
    # True when it may be older: it began before anything watched.
    at_least: bool = False
    # Bytes received for it; absent when unknown.
    in_bytes: float | None = None
    # Bytes sent for it; absent when unknown.
    out_bytes: float | None = None
    # Age of the last byte received, milliseconds.
    last_in_age_ms: float | None = None
    # Age of the last byte sent, milliseconds.
    last_out_age_ms: float | None = None
    # True when the answer has begun and has not ended.
    streaming: bool = False
    # Process at the other end.
    peer_pid: int | None = None
    # Address at the other end.
    peer_address: str = ""
    # The same request one hop further, as references "requests[N]".
    upstream: tuple[str, ...] = ()
    # HTTP status when the answer has begun; 0 otherwise.
    status: int = 0
    # Where it comes from: "socket", "log", "recorder".
    source: str = ""
    # How sure the join to `upstream` is: "id", "order", "count"; empty when not joined.
    joined_by: str = ""
