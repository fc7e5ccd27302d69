"""The structs of `ledger.h` as Python sees them; a test compares them with the C, field by field."""

from __future__ import annotations

import struct
from typing import NamedTuple

# Sizes, given to the C with -D. Powers of two where the C masks with them.
MAX_PROCESSES = 4096
MAX_CONNECTIONS = 32768
MAX_CONNECTIONS_PER_PROCESS = 16384
HEADS = 4096
MAX_HEADS_PER_PROCESS = 1024
HEAD_BYTES = 2048
HEAD_PIECE = 512
MAX_STREAMS = 16384
MAX_THREADS = 16384
MAX_FUTEXES = 16384
# Descriptors whose connection is found at once.
RECENT = 8192
# Of the ring of `sockets.bpf.c`.
SOCKET_EVENTS = 4096
NO_HEAD = 0xFFFFFFFF
# In last bytes that could not be read, UNKNOWN_TAIL of the C.
UNKNOWN_SIGN = 0xFF

UNKNOWN, HTTP1, HTTP2, TLS, UPGRADED = range(5)
NO_SIDE, SERVER, CLIENT = range(3)
IN, OUT, NOWHERE = range(3)
REQUEST_HEAD, RESPONSE_HEAD = range(2)
FREE, FILLING, TAKEN = range(3)

SEEN_LATE = 0x01
END_OF_INPUT = 0x02
SHUT_OUT = 0x04
BROKEN = 0x08
NO_FREE_HEAD = 0x10
FRAMES_LOST = 0x20
HEAD_GAP = 0x40

CLOSED_RANGE = 0x01

# Of `counters`, in the order of enum counter.
COUNTERS = (
    "requests",
    "responses",
    "lost_requests",
    "lost_connections",
    "lost_heads",
    "lost_processes",
    "lost_streams",
)


class Watch(NamedTuple):
    """One watched process."""

    generation: int
    sweep: int
    requests: int
    responses: int
    lost: int
    connections: int
    heads: int
    flags: int
    exited: int


class Connection(NamedTuple):
    """One connection as one process sees it; see `ledger.h`."""

    generation: int
    tgid: int
    fd: int
    references: int
    flags: int
    status: int
    protocol: int
    side: int
    direction: int
    events: int
    requests: int
    in_ns: int
    out_ns: int
    turn_ns: int
    in_bytes: int
    out_bytes: int
    in_tail: bytes
    out_tail: bytes
    response_ns: int
    response_at: int
    request_ns: int
    request_in: int
    request_out: int
    last_head_at: int
    request_head: int
    response_head: int
    responses: int
    answers: int
    interim: int
    pipelined: int
    opened_ns: int
    ended_ns: int
    last_stream: int
    streams_opened: int
    streams_closed: int


class Stream(NamedTuple):
    """One open HTTP/2 stream."""

    connection: int
    number: int
    opened_ns: int
    answered_ns: int


class FutexState(NamedTuple):
    """What went on at one address."""

    waits: int
    wait_ns: int
    wakes: int
    woken: int
    last_wake_ns: int


SOCKET_EVENT = struct.Struct("=QII16s16sHHHxx")
THREAD = struct.Struct("=QQI4x")
FUTEX = struct.Struct("=QI4x")
FUTEX_STATE = struct.Struct("=QQQQQ")
WAKERS = struct.Struct("=IIII")
WATCH = struct.Struct("=QQQQQiIII")
DESCRIPTOR = struct.Struct("=II")
REFERENCE = struct.Struct("=QQQ")
CONNECTION = struct.Struct("=QIIIIHBBBxxxII5Q8s8s6Q6IQQ8xIII4x64x")
HEAD = struct.Struct("=QIII4x")
HEAD_SIZE = HEAD.size + HEAD_BYTES + HEAD_PIECE
STREAM = struct.Struct("=QQ")
STREAM_STATE = struct.Struct("=QQ")
CONTROL = struct.Struct("=Q")
ID = struct.Struct("=Q")
PID = struct.Struct("=I")

SIZES = (
    ("MAX_PROCESSES", MAX_PROCESSES),
    ("MAX_CONNECTIONS", MAX_CONNECTIONS),
    ("MAX_CONNECTIONS_PER_PROCESS", MAX_CONNECTIONS_PER_PROCESS),
    ("HEADS", HEADS),
    ("MAX_HEADS_PER_PROCESS", MAX_HEADS_PER_PROCESS),
    ("HEAD_BYTES", HEAD_BYTES),
    ("MAX_STREAMS", MAX_STREAMS),
    ("MAX_THREADS", MAX_THREADS),
    ("MAX_FUTEXES", MAX_FUTEXES),
    ("RECENT", RECENT),
)
