"""What correlation brings: the input of every verdict rule.

All ages are milliseconds at the last look, all `*_index` are positions in the snapshot's tuples, so that evidence can
name "sockets[12]".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import chain

from freezeframe.judge.correlate.joined import number_of
from freezeframe.judge.correlate.thresholds import STUCK_MS
from freezeframe.judge.model import (
    AsyncioTask,
    Edge,
    Hop,
    Host,
    Metric,
    Outcome,
    Process,
    PythonThread,
    Rank,
    Request,
    Snapshot,
)


class Debt(Enum):
    """Who has to act next on one connection."""

    # Nobody, as far as one can see: an idle keep-alive, or a stream between two chunks.
    NONE = "none"
    # The client asked to connect and got no answer.
    CONNECTING = "connecting"
    # The connection waits in the server's accept queue.
    UNACCEPTED = "unaccepted"
    # The server has not read bytes of the client.
    UNREAD = "unread"
    # The server has read the request and owes the answer.
    ANSWER = "answer"
    # The client has not read bytes of the server.
    UNDELIVERED = "undelivered"
    # Ages are equal or missing.
    UNKNOWN = "unknown"


# The client waits for the server in these.
SERVER_OWES = frozenset({Debt.CONNECTING, Debt.UNACCEPTED, Debt.UNREAD, Debt.ANSWER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """One TCP connection of the serving path, from both ends where both are on this host."""

    client_pid: int | None
    # Address without port.
    client_address: str
    server_pid: int | None
    # Address with port.
    server_address: str
    # Position of each end in `snapshot.sockets`.
    client_index: int | None
    server_index: int | None
    debt: Debt
    # For how long the debt has stood, at least; absent when unknown.
    age_ms: float | None
    # Time since a byte moved either way, at least; absent when unknown.
    quiet_ms: float | None
    # Age of the last byte towards the client; absent when none was sent or it is unknown.
    last_down_ms: float | None
    # Bytes between the looks; absent with one look.
    bytes_up_delta: float | None
    bytes_down_delta: float | None
    # True when both ends were seen and say the same.
    agreed: bool
    # The server has closed its side and the client has not.
    closed_by_server: bool
    # The client has closed its side and the server has not.
    closed_by_client: bool
    # When `debt` is UNDELIVERED: whether the client took nothing for STUCK_MS or a whole window.
    untaken: bool = False
    # Certainly nothing is in flight on it: the recorder saw every answer end.
    rests: bool = False
    # The answer has begun, has not ended, and stands still: the recorder saw it begin.
    broken_off: bool = False
    # It carries something else than requests and answers, by the recorder's word: a websocket.
    upgraded: bool = False
    # What went to the client in the window was no answer: a few bytes that keep its connection alive.
    kept_alive: bool = False

    @property
    def owed(self) -> bool:
        """Whether the client waits for the server."""
        return self.debt in SERVER_OWES

    @property
    def stuck(self) -> bool:
        """Whether its client has waited for long and got nothing."""
        return self.age_ms is not None and self.age_ms >= STUCK_MS and self.debt in SERVER_OWES

    @property
    def moving(self) -> bool:
        """Whether bytes of an answer went to the client between the looks; False with one look."""
        return bool(self.bytes_down_delta) and not self.kept_alive

    @property
    def streaming(self) -> bool:
        """Whether bytes went to the client while it sent none: an answer in progress, not probes or scrapes."""
        return self.moving and not self.bytes_up_delta

    @property
    def refs(self) -> tuple[str, ...]:
        """Where both ends stand in the snapshot."""
        return tuple(f"sockets[{index}]" for index in (self.client_index, self.server_index) if index is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """One listening TCP socket of a process of the path."""

    pid: int
    address: str
    port: int
    index: int
    # Connections that wait, at each look; the second is absent with one look.
    backlog: int
    backlog_after: int | None
    limit: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What one engine's exporter says, summed over labels; None for what it does not export."""

    running: float | None = None
    waiting: float | None = None
    # The queues of disaggregation, all, and of these the ones before a connection to the partner stands (bootstrap,
    # prealloc) and those during the transfer (inflight, transfer).
    handover: float | None = None
    bootstrap: float | None = None
    transfer: float | None = None
    # Tokens counted between the looks; absent with one look.
    tokens_delta: float | None = None
    # Those of them that were generated.
    generated_delta: float | None = None
    # Requests that the HTTP layer counts in flight.
    http_active: float | None = None
    # Age of the oldest of these values; absent when no source tells.
    age_ms: float | None = None
    # How long ago its schedulers last told numbers with their time, the slowest of them; one of SGLang does so each
    # second, idle too.
    told_age_ms: float | None = None
    # Positions in `snapshot.metrics`.
    indexes: tuple[int, ...] = ()

    @property
    def known(self) -> bool:
        """Whether the scheduler's own numbers are there."""
        return self.running is not None and self.waiting is not None

    def told_since(self, age_ms: float | None) -> bool:
        """Whether what they say is not known to be from before a request of this age, and so of other requests."""
        return self.age_ms is None or self.age_ms <= (age_ms or 0.0)

    @property
    def empty(self) -> bool:
        """Whether they are there, not known to be stale, and all 0."""
        return self.known and not self.running and not self.waiting and not self.handover


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine: its HTTP process and what belongs to it."""

    # Leader: the HTTP process.
    pid: int
    # "prefill", "decode" or "engine".
    kind: str
    http_pids: tuple[int, ...]
    scheduler_pids: tuple[int, ...]
    detokenizer_pids: tuple[int, ...]
    gauges: Gauges
    # True: something in it works. False: all of it provably rests. None: cannot be told.
    busy: bool | None
    # Why, one phrase; with references.
    busy_reason: str
    busy_refs: tuple[str, ...]
    # Wake-ups per second of its schedulers' main threads over the window, the most of any; absent when unknown.
    wakes_per_s: float | None = None
    # Where the main thread of a scheduler or worker of it is, the same at both looks, when that is in a batch that it
    # runs, and nothing comes out of it: "forward_decode (scheduler.py:240)"; with references.
    batch: str = ""
    batch_refs: tuple[str, ...] = ()
    # Answers in progress on its connections; two looks only.
    streams: int = 0
    # Every scheduler of it was seen in its idle sleep over the whole window, which only empty queues allow.
    asleep: bool = False

    @property
    def accounted(self) -> bool:
        """Whether its scheduler has nothing but the answers in progress: by its idle sleep, or by its numbers."""
        gauges = self.gauges
        if self.asleep:
            return True
        return gauges.known and not gauges.waiting and not gauges.handover and (gauges.running or 0) <= self.streams

    @property
    def pids(self) -> tuple[int, ...]:
        """All its processes."""
        return (*self.http_pids, *self.scheduler_pids, *self.detokenizer_pids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One process or address that asks the path, and what it gets."""

    name: str
    pid: int | None
    address: str
    connections: int
    # Requests that it waits for: owed ones and answers in progress.
    in_flight: int
    # Owed for at least STUCK_MS while nothing came on their connections.
    stuck: int
    # Connections with an answer in progress.
    streaming: int
    # Connections towards which bytes moved, probes and scrapes too.
    moving: int
    oldest_age_ms: float | None
    bytes_per_s: float | None
    stray: bool
    bypasses_router: bool
    # Names of the hops that it talks to.
    talks_to: tuple[str, ...]
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One host of the path, and which records of the snapshot are its own."""

    # Empty where the snapshot is of one host.
    name: str
    host: Host | None
    # Outcome by collector.
    outcomes: dict[str, Outcome]
    # Positions in `snapshot.outcomes`, `snapshot.gpus` and `snapshot.kernel_events`.
    first_outcome: int
    gpus: range
    kernel_events: range

    def ref(self, where: str) -> str:
        """Reference to what is no list: "host", or "gpu-07/host" where there are several hosts."""
        return f"{self.name}/{where}" if self.name else where


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The snapshot of one host, or of several joined, joined up."""

    snapshot: Snapshot
    # Hosts by their number in pids (`joined.number_of`): 0 alone where the snapshot is of one host.
    places: dict[int, Place]
    # Time between the looks; 0 means one look.
    window_ms: float
    processes: dict[int, Process]
    # Position of each pid in `snapshot.processes`.
    process_index: dict[int, int]
    connections: tuple[Connection, ...]
    listeners: tuple[Listener, ...]
    edges: tuple[Edge, ...]
    engines: tuple[Engine, ...]
    routers: tuple[int, ...]
    clients: tuple[Client, ...]
    # Key of the client group that matters, as in `Client.pid` or `Client.address`; None when there is none.
    group: int | str | None
    # Why the group was taken: "named", "most stuck requests"; or what makes it ambiguous.
    group_reason: str
    hops: tuple[Hop, ...]
    requests: tuple[Request, ...]
    # asyncio tasks, each with the request that it serves.
    tasks: tuple[AsyncioTask, ...]
    # Schedulers and workers with their phases, by parallel group.
    ranks: tuple[Rank, ...]
    # What is not known and why.
    unknowns: tuple[str, ...]
    # Outcome by collector; of several hosts it says of which processes one of them missed something.
    outcomes: dict[str, Outcome]
    # Main Python threads by pid, with their positions.
    mains: dict[int, tuple[int, PythonThread]]
    # Positions in `connections`, by server and by client.
    _served: dict[int, list[int]] = field(init=False, repr=False, compare=False)
    _opened: dict[int, list[int]] = field(init=False, repr=False, compare=False)
    _stuck: dict[int, list[int]] = field(init=False, repr=False, compare=False)
    _engines: dict[int, Engine] = field(init=False, repr=False, compare=False)
    # Positions in `snapshot.metrics`, by pid.
    _metrics: dict[int, list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index what every rule asks for of a few processes."""
        served: dict[int, list[int]] = {}
        opened: dict[int, list[int]] = {}
        stuck: dict[int, list[int]] = {}
        for position, connection in enumerate(self.connections):
            if connection.server_pid is not None:
                served.setdefault(connection.server_pid, []).append(position)
                if connection.stuck:
                    stuck.setdefault(connection.server_pid, []).append(position)
            if connection.client_pid is not None:
                opened.setdefault(connection.client_pid, []).append(position)
        metrics: dict[int, list[int]] = {}
        for position, metric in enumerate(self.snapshot.metrics):
            metrics.setdefault(metric.pid, []).append(position)
        object.__setattr__(self, "_metrics", metrics)
        object.__setattr__(self, "_served", served)
        object.__setattr__(self, "_opened", opened)
        object.__setattr__(self, "_stuck", stuck)
        object.__setattr__(self, "_engines", {pid: e for e in reversed(self.engines) for pid in e.http_pids})

    def place(self, pid: int) -> Place:
        """The host of a process."""
        return self.places[number_of(pid)]

    @property
    def two_looks(self) -> bool:
        """Whether movement over a window is known."""
        return self.window_ms > 0

    def collected(self, collector: str, pids: tuple[int, ...] = ()) -> bool:
        """Whether a collector brought what it should of these pids; with none, of all.

        A collector without an outcome counts as collected: a part of a snapshot, or a file of an older writer.
        """
        outcome = self.outcomes.get(collector)
        if outcome is None or outcome.status is Outcome.Status.OK:
            return True
        if outcome.status is not Outcome.Status.PARTIAL or not pids:
            return False
        # PARTIAL without pids means that something is missing that belongs to no single target.
        return bool(outcome.pids_missed) and not set(pids) & set(outcome.pids_missed)

    def looked_at(self, collector: str, pids: tuple[int, ...]) -> bool:
        """Whether a collector finished with each of these pids, even if it could not see all that it looks for."""
        outcome = self.outcomes.get(collector)
        if outcome is None:
            return True
        brought = outcome.status in {Outcome.Status.OK, Outcome.Status.PARTIAL}
        return brought and not set(pids) & set(outcome.pids_missed)

    def to_server(self, *pids: int) -> tuple[Connection, ...]:
        """Connections that these processes serve."""
        return self._at(self._served, pids)

    def stuck_at(self, *pids: int) -> tuple[Connection, ...]:
        """Those of them whose client has waited for long and got nothing."""
        return self._at(self._stuck, pids)

    def from_client(self, *pids: int) -> tuple[Connection, ...]:
        """Connections that these processes opened."""
        return self._at(self._opened, pids)

    def _at(self, index: dict[int, list[int]], pids: tuple[int, ...]) -> tuple[Connection, ...]:
        positions = [index.get(pid, []) for pid in dict.fromkeys(pids)]
        return tuple(self.connections[position] for position in sorted(chain.from_iterable(positions)))

    def metrics_of(self, *pids: int) -> tuple[tuple[int, Metric], ...]:
        """What these processes export, each with its position in `snapshot.metrics`, in that order."""
        positions = sorted(chain.from_iterable(self._metrics.get(pid, []) for pid in dict.fromkeys(pids)))
        return tuple((position, self.snapshot.metrics[position]) for position in positions)

    def engine_of(self, pid: int | None) -> Engine | None:
        """The engine whose HTTP process this is."""
        return self._engines.get(pid) if pid is not None else None

    @property
    def stuck(self) -> int:
        """Requests of clients that are owed for long and got nothing."""
        return sum(client.stuck for client in self.clients)

    @property
    def oldest_stuck_ms(self) -> float | None:
        """Age of the oldest request that a client waits for."""
        return max((c.oldest_age_ms for c in self.clients if c.stuck and c.oldest_age_ms is not None), default=None)
