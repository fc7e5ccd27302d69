"""What the recorder tells of threads that wait and of connections, apart from requests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FutexWait:
    """One thread that waits for a futex now."""

    # Process.
    pid: int = 0
    # Thread.
    tid: int = 0
    # Address, hexadecimal.
    address: str = ""
    # "wait", "wait_bitset", "lock_pi" ...
    operation: str = ""
    # Time it has waited, milliseconds; absent when unknown.
    since_ms: float | None = None
    # True when it may be longer: it began before the recorder was armed.
    at_least: bool = False
    # True when it ends by itself after some time.
    timed: bool = False
    # Time until then, milliseconds; absent when it does not, or when is not known.
    timeout_left_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FutexAddress:
    """What went on at one futex address since the recorder was armed."""

    # Process.
    pid: int = 0
    # Address, hexadecimal.
    address: str = ""
    # Waits that ended.
    waits: float = 0.0
    # Their time in all, milliseconds.
    wait_ms: float = 0.0
    # Threads that wait now.
    waiters: int = 0
    # Wakes.
    wakes: float = 0.0
    # Age of the last one, milliseconds; absent when there was none.
    last_wake_age_ms: float | None = None
    # Threads that woke last, the last one first.
    wakers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionEvent:
    """What happened to the connections of one edge since the recorder was armed."""

    # Address of the client, without port.
    client: str = ""
    # Address of the server, with port.
    server: str = ""
    # "connected", "accepted", "connect failed", "closed by client", "closed by server", "reset by client",
    # "reset by server", "retransmitted".
    what: str = ""
    # How often.
    count: float = 0.0
    # Age of the last one, milliseconds.
    last_age_ms: float = 0.0
    # Process that did it last; absent when unknown.
    pid: int | None = None
