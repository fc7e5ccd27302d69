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
    # "http/1.1", "h2" (one of its streams), "websocket", "tls" (the connection as a whole); empty when unknown.
    protocol: str = ""
    # True when the request itself has not come, or gone, as a whole.
    arriving: bool = False
    # Time since the other side closed, milliseconds; absent when it has not.
    closed_age_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionEnd:
    """One end of a connection."""

    # Its process.
    pid: int = 0
    # Its descriptor.
    fd: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderState:
    """The always-armed part, and what it lost: counts since it was armed."""

    # Time since it was armed, milliseconds: what began earlier is known by its socket alone.
    armed_ms: float = 0.0
    # Kernel memory of its maps, bytes.
    locked_bytes: float = 0.0
    # Processes watched now.
    processes: int = 0
    # Connections kept now.
    connections: int = 0
    # Connections that there is room for.
    max_connections: int = 0
    # Requests seen.
    requests_seen: float = 0.0
    # Answers seen.
    responses_seen: float = 0.0
    # Requests on connections for which there was no room.
    lost_requests: float = 0.0
    # Connections for which there was no room.
    lost_connections: float = 0.0
    # Messages whose head found no room: their method, path and id are unknown.
    lost_heads: float = 0.0
    # Processes for which there was no room.
    lost_processes: float = 0.0
    # HTTP/2 streams for which there was no room.
    lost_streams: float = 0.0
    # Answered, idle connections that were taken out to make room.
    evicted: float = 0.0
    # 0 = the cheapest way of reading system calls; 1 = the next one.
    rung: int = 0
    # Processes that use io_uring: what it carries is not seen.
    io_uring_pids: tuple[int, ...] = ()
    # CPU time of the recorder's process since it started, milliseconds.
    cpu_ms: float = 0.0
    # Connections of the path on which certainly nothing is in flight: all their requests are answered to the end.
    resting: tuple[ConnectionEnd, ...] = ()
