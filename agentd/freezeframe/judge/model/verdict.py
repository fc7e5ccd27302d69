"""What the evidence proves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """How sure a verdict is."""

    class Level(Enum):
        """HIGH: proved twice or by the kernel; MEDIUM: proved once; LOW: the best of several readings."""

        UNSPECIFIED = 0
        LOW = 1
        MEDIUM = 2
        HIGH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One fact with where it stands in the snapshot."""

    # The fact, one sentence or less.
    text: str = ""
    # Where: "sockets[12]", "processes[3].threads[0]", "outcomes[2]"; several separated by spaces.
    ref: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """A hop that does not hold the requests."""

    # Hop, with its pids where it is one of several: "decode", "scheduler of decode".
    hop: str = ""
    # Why.
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What one client process, or address, sent and gets."""

    # Name: title or address.
    client: str = ""
    # Its pid; absent for an address.
    pid: int | None = None
    # Requests it waits for.
    requests_in_flight: int = 0
    # Age of the oldest, milliseconds (at least).
    oldest_age_ms: float | None = None
    # Bytes per second towards it over the window; absent with one look.
    bytes_per_s: float | None = None
    # Tokens per second towards it; absent when unknown.
    tokens_per_s: float | None = None
    # True when its bytes move while the group that owns most of the stuck requests gets none.
    stray: bool = False
    # Open connections.
    connections: int = 0
    # Hops that it talks to: "router", or "decode" when it goes round the router.
    talks_to: tuple[str, ...] = ()
    # True when it reaches an engine that a router serves without going through the router.
    bypasses_router: bool = False
    # Bytes per second towards it over the last 10 s, as the recorder saw them; absent when it watches for less.
    bytes_per_s_10s: float | None = None
    # The same over the last 60 s.
    bytes_per_s_60s: float | None = None
    # By how much `tokens_per_s` may be off, either way; absent when unknown.
    tokens_per_s_error: float | None = None
    # Of several hosts: the one that `pid` runs on; empty otherwise.
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the evidence proves."""

    class Code(Enum):
        """Stable codes, each with a minimum proof."""

        UNSPECIFIED = 0
        NOT_STUCK = 1
        IDLE = 2
        CLIENT_NOT_SENDING = 3
        CLIENT_NOT_READING = 4
        PROXY_HOLDS = 5
        ROUTER_NOT_ACCEPTING = 6
        ROUTER_NO_WORKERS = 7
        ROUTER_QUEUE = 8
        ROUTER_HOLDS = 9
        ROUTER_DUAL_LEG = 10
        ROUTER_LOST_REPLY = 11
        ZOMBIE_UPSTREAM = 12
        ENGINE_NOT_ACCEPTING = 13
        ENGINE_HTTP_BLOCKED = 14
        ENGINE_HOLDS = 15
        ENGINE_HANDOFF = 16
        SCHEDULER_QUEUE = 17
        SCHEDULER_LIVELOCK = 18
        RANKS_DIVERGED = 19
        PD_BOOTSTRAP = 20
        PD_TRANSFER = 21
        PREFILL_STALLED = 22
        DECODE_STALLED = 23
        GPU_SPIN = 24
        GPU_FAULT = 25
        DETOKENIZER = 26
        DEADLOCK = 27
        PROCESS_STOPPED = 28
        PROCESS_DEAD = 29
        PROCESS_UNINTERRUPTIBLE = 30
        NETWORK_STALLED = 31
        HOST_STARVED = 32
        UNDETERMINED = 33

    # The code.
    code: Code = Code.UNSPECIFIED
    # Hop that holds the requests: "client", "router", "prefill" ...; empty when none.
    hop: str = ""
    # Processes that hold them.
    holder_pids: tuple[int, ...] = ()
    # One sentence.
    summary: str = ""
    # How sure.
    confidence: Confidence.Level = Confidence.Level.UNSPECIFIED
    # What proves it.
    evidence: tuple[Evidence, ...] = ()
    # Hops that do not hold them, and why.
    ruled_out: tuple[RuledOut, ...] = ()
    # What was not looked at, and why.
    unknowns: tuple[str, ...] = ()
    # Who sent the requests and who gets the bytes.
    attribution: tuple[Attribution, ...] = ()
    # What to do next, most useful first.
    next_steps: tuple[str, ...] = ()
    # Stuck requests that it explains.
    explains: int = 0
    # Holder on another host, or known by address only.
    holder_address: str = ""
    # Of several hosts: host of each of `holder_pids`; empty where the snapshot is of one host.
    holder_hosts: tuple[str, ...] = ()
