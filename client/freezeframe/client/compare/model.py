"""What a comparison of two snapshots says. Times are milliseconds, sizes bytes; `before` is the older snapshot.

Of each kind of record there are counts by state, and the records whose state is worth a line. States:
"same" (in both), "gone" (in the older one alone, and the newer one looked), "new" (the reverse), "unclear" (one of them
did not look, or it cannot be told which is which), "changed" (stacks, numbers, processes: in both, and not equal) and
"restarted" (processes: another one took its place).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One of the two snapshots, and its verdict."""

    snapshot_id: str
    file: str
    started_at: str
    window_ms: float
    code: str
    confidence: str
    hop: str
    holder_pids: tuple[int, ...]
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """What one of the two did not look at, so that nothing of it is called gone or new."""

    # "requests", "sockets", "python", "native", "asyncio", "metrics", "processes".
    what: str
    # "before" or "after".
    missing_in: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestChange:
    """One request in flight at one process; one that was passed on is a request there too."""

    state: str
    pid: int | None
    fd: int | None
    hop: str
    # "server" or "client": which end of the connection `pid` is.
    side: str
    peer_pid: int | None
    peer_address: str
    request_id: str
    method: str
    path: str
    # True when a client sent it, not a router or proxy that passed it on.
    of_client: bool
    age_before_ms: float | None
    age_after_ms: float | None
    # Both ways on its connection between the snapshots; None when unknown.
    bytes_moved: float | None
    # Why it is "unclear", or gone with its process; else empty.
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessChange:
    """One process of the path."""

    state: str
    pid: int
    # Of the one that took its place; None when none did, or it has the same pid.
    pid_after: int | None
    role: str
    title: str
    # CPU time between the snapshots; None when unknown.
    cpu_ms: float | None
    # "state S, then T", "frozen" ...
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackChange:
    """One thread or task."""

    state: str
    # "python", "native" or "asyncio".
    kind: str
    pid: int
    # Thread id; None for a task.
    tid: int | None
    name: str
    # Innermost first, "function (file:line)".
    frames_before: tuple[str, ...]
    frames_after: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StackCounts:
    """How many threads or tasks of one process did what."""

    kind: str
    pid: int
    same: int
    changed: int
    gone: int
    new: int
    unclear: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricChange:
    """One gauge or counter whose value is another."""

    name: str
    labels: dict[str, str]
    pid: int
    before: float
    after: float
    change: float
    # Age of the newer value; None when its source does not tell.
    age_ms: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketChange:
    """One connection, or listener, that moved bytes, changed its state, came or went."""

    state: str
    local: str
    remote: str
    pid: int | None
    peer_pid: int | None
    bytes_in: float | None
    bytes_out: float | None
    # "ESTAB, then CLOSE-WAIT", "backlog 0, then 30" ...
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All of it, of one host."""

    # The first line.
    headline: str
    host: str
    before: Moment
    after: Moment
    # From the last look of the one to the last look of the other.
    elapsed_ms: float
    # Requests of clients that are the same in both and on whose connections no byte moved in between.
    still: int
    # True when all requests of clients are the same ones and no byte moved on their connections.
    nothing_moved: bool
    verdict_changed: bool
    # What has to be known to read the rest: order, windows, reboot, damage.
    remarks: tuple[str, ...]
    unseen: tuple[Unseen, ...]
    request_counts: dict[str, int]
    requests: tuple[RequestChange, ...]
    process_counts: dict[str, int]
    processes: tuple[ProcessChange, ...]
    stack_counts: tuple[StackCounts, ...]
    stacks: tuple[StackChange, ...]
    metric_counts: dict[str, int]
    metrics: tuple[MetricChange, ...]
    socket_counts: dict[str, int]
    sockets: tuple[SocketChange, ...]
