"""One capture of one host."""

from __future__ import annotations

from dataclasses import dataclass

from freezeframe.judge.model.host import Gpu, History, Host, KernelEvent
from freezeframe.judge.model.logs import LogFinding, LogRequest, LogSource
from freezeframe.judge.model.meta import Meta, Outcome
from freezeframe.judge.model.metrics import DebugTrace, Endpoint, Metric, Rank
from freezeframe.judge.model.processes import Process
from freezeframe.judge.model.profiles import ProfileThread
from freezeframe.judge.model.requests import RecorderState, Request
from freezeframe.judge.model.sockets import Edge, Hop, Socket
from freezeframe.judge.model.stacks import AsyncioTask, Lock, NativeThread, PythonThread
from freezeframe.judge.model.traces import ConnectionEvent, FutexAddress, FutexWait
from freezeframe.judge.model.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything that one capture of one host brought, and what it proves.

    A part of a snapshot, as one worker reports it, is a Snapshot with most fields empty.
    """

    # When, where and why.
    meta: Meta | None = None
    # One per collector.
    outcomes: tuple[Outcome, ...] = ()
    # Processes of the serving path and their clients.
    processes: tuple[Process, ...] = ()
    # Their sockets.
    sockets: tuple[Socket, ...] = ()
    # Requests in flight.
    requests: tuple[Request, ...] = ()
    # Python stacks.
    python_threads: tuple[PythonThread, ...] = ()
    # Native stacks.
    native_threads: tuple[NativeThread, ...] = ()
    # asyncio tasks.
    asyncio_tasks: tuple[AsyncioTask, ...] = ()
    # Locks.
    locks: tuple[Lock, ...] = ()
    # Gauges and counters.
    metrics: tuple[Metric, ...] = ()
    # Ranks.
    ranks: tuple[Rank, ...] = ()
    # GPUs.
    gpus: tuple[Gpu, ...] = ()
    # What logs say.
    log_findings: tuple[LogFinding, ...] = ()
    # What the kernel's log says.
    kernel_events: tuple[KernelEvent, ...] = ()
    # The host.
    host: Host | None = None
    # What came before.
    history: History | None = None
    # Who talks to whom.
    edges: tuple[Edge, ...] = ()
    # The principal finding.
    verdict: Verdict | None = None
    # Every verdict that stands, the principal one first.
    findings: tuple[Verdict, ...] = ()
    # Hops in the order of the path.
    hops: tuple[Hop, ...] = ()
    # Passive endpoints and how they answered.
    endpoints: tuple[Endpoint, ...] = ()
    # Logs that were read.
    log_sources: tuple[LogSource, ...] = ()
    # Requests of the router's log.
    log_requests: tuple[LogRequest, ...] = ()
    # The recorder.
    recorder: RecorderState | None = None
    # Threads that wait for a futex.
    futex_waits: tuple[FutexWait, ...] = ()
    # Futex addresses, those with the longest total wait first.
    futex_addresses: tuple[FutexAddress, ...] = ()
    # What happened to connections.
    connection_events: tuple[ConnectionEvent, ...] = ()
    # What threads ran and waited in over some seconds, when a profile was asked for.
    profile: tuple[ProfileThread, ...] = ()
    # What NCCL, torch and CUDA tell or have left for debugging.
    debug_traces: tuple[DebugTrace, ...] = ()
