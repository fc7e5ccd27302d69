"""Snapshots made by hand: a few lines say who is there and what is on the wires.

    scene = Scene()
    router, client = scene.router(), scene.client("harness.py")
    prefill, decode = scene.engine("prefill"), scene.engine("decode")
    scene.owed(client, router, 30, age_ms=41_000)
    scene.owed(router, prefill, 30, age_ms=41_000)
    scene.idle(router, decode, 3)
    scene.gauges(prefill, bootstrap=30)
    verdict = scene.conclude().verdict

Ages are those of the last look. Nothing moves on a connection unless it says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from freezeframe.judge.model import (
    Gpu,
    Host,
    KernelEvent,
    LogFinding,
    LogRequest,
    Meta,
    Metric,
    Outcome,
    Process,
    PythonThread,
    Snapshot,
    Socket,
    Thread,
    Verdict,
)
from freezeframe.judge.model.stacks import Frame
from freezeframe.judge.verdicts import conclude

Role = Process.Role
Status = Outcome.Status

COLLECTORS = (
    "snapshot_processes",
    "snapshot_sockets",
    "snapshot_python_stacks",
    "sample_metrics",
    "read_logs",
    "snapshot_host",
)
_GAUGES = {
    "running": "sglang:num_running_reqs",
    "waiting": "sglang:num_queue_reqs",
    "bootstrap": "sglang:num_prefill_bootstrap_queue_reqs",
    "inflight": "sglang:num_prefill_inflight_queue_reqs",
    "prealloc": "sglang:num_decode_prealloc_queue_reqs",
    "transfer": "sglang:num_decode_transfer_queue_reqs",
}
LOOP_RESTS = (
    Frame(function="run", file="asyncio/runners.py", line=118),
    Frame(function="asyncio_run", file="uvicorn/_compat.py", line=30),
    Frame(function="run", file="uvicorn/server.py", line=65),
)
# In no batch, and in no frame that is known for rest.
SCHEDULER_LOOP = (Frame(function="event_loop_normal", file="sglang/srt/managers/scheduler.py", line=1100),)


@dataclass(frozen=True, kw_only=True)
class Engine:
    http: int
    scheduler: int
    detokenizer: int
    port: int


Party = int | Engine


class Scene:
    """One host, one capture."""

    def __init__(self, *, window_ms: float = 1000.0, client: str = "", usual_clients: tuple[str, ...] = ()) -> None:
        self.meta = Meta(host="gpu-07", window_ms=window_ms, client=client, usual_clients=usual_clients)
        self.processes: dict[int, Process] = {}
        self.sockets: list[Socket] = []
        self.metrics: list[Metric] = []
        self.python_threads: list[PythonThread] = []
        self.log_findings: list[LogFinding] = []
        self.log_requests: list[LogRequest] = []
        self.host = Host(cpus=2)
        self.gpus: tuple[Gpu, ...] = ()
        self.kernel_events: tuple[KernelEvent, ...] = ()
        self.outcomes = {name: Outcome(collector=name, status=Status.OK) for name in COLLECTORS}
        self._ports: dict[int, int] = {}
        self._next_pid, self._next_port, self._next_inode = 100, 40_000, 1000

    # Who is there.

    def router(self, *, product: str = "sglang-router", **fields: Any) -> int:
        return self.process(Role.ROUTER, "sglang::router", product=product, port=30_000, **fields)

    def engine(self, kind: str = "", *, product: str = "sglang") -> Engine:
        port = 31_000 + len(self.processes)
        common: dict[str, Any] = {"product": product, "disaggregation": kind}
        http = self.process(Role.ENGINE_HTTP, "python -m sglang.launch_server", python="3.11", port=port, **common)
        self.processes[http] = replace(self.processes[http], engine_pid=http)
        scheduler = self.process(Role.SCHEDULER, "sglang::scheduler", python="3.11", engine_pid=http, **common)
        detokenizer = self.process(Role.DETOKENIZER, "sglang::detokenizer", engine_pid=http, **common)
        self.stack(http, LOOP_RESTS)
        self.stack(scheduler, SCHEDULER_LOOP)
        return Engine(http=http, scheduler=scheduler, detokenizer=detokenizer, port=port)

    def client(self, name: str = "harness.py", **fields: Any) -> int:
        return self.process(Role.CLIENT, f"python {name}", argv=("python", name), **fields)

    def process(self, role: Process.Role, title: str, *, port: int = 0, **fields: Any) -> int:
        self._next_pid += 1
        pid = self._next_pid
        two = self.meta.window_ms > 0
        main = Thread(tid=pid, state="S", cpu_ms_delta=0.0 if two else None, state_after="S" if two else "")
        self.processes[pid] = Process(
            pid=pid,
            role=role,
            title=title,
            age_ms=3_600_000,
            **{"state": "S", "threads": (main,), "cpu_ms_delta": 0.0 if two else None, **fields},
        )
        if port:
            self._ports[pid] = port
            self.sockets.append(
                Socket(
                    family="tcp",
                    state="LISTEN",
                    local=f"127.0.0.1:{port}",
                    remote="0.0.0.0:0",
                    pid=pid,
                    fd=5,
                    backlog=0,
                    backlog_limit=4096,
                    recv_queue_after=0.0 if two else None,
                    inode=self._inode(),
                    lasting=True,
                )
            )
        return pid

    def change(self, pid: int, **fields: Any) -> None:
        self.processes[pid] = replace(self.processes[pid], **fields)

    def state(self, pid: int, state: str, *, cpu_ms: float = 0.0) -> None:
        """Both looks show this state; between them the process used so much CPU time."""
        main = self.processes[pid].threads[0]
        after = state if self.meta.window_ms else ""
        spent = cpu_ms if self.meta.window_ms else None
        main = replace(main, state=state, state_after=after, cpu_ms_delta=spent)
        self.change(pid, state=state, threads=(main,), cpu_ms_delta=spent)

    def sleeps(self, pid: int) -> None:
        """A scheduler in its idle sleep at both looks and in between."""
        self.wakes(pid, 1)
        frames = (
            Frame(function="Poller.poll", file="zmq/sugar/poll.py", line=106),
            Frame(function="IdleSleeper.maybe_sleep", file="scheduler_components/idle_sleeper.py", line=37),
            Frame(function="Scheduler.event_loop_normal", file="managers/scheduler.py", line=1200),
        )
        self.stack(pid, frames)

    def wakes(self, pid: int, count: int) -> None:
        """How often its main thread woke between the looks."""
        main = replace(self.processes[pid].threads[0], voluntary_switches_delta=count)
        self.change(pid, threads=(main,))

    # What is on the wires.

    def owed(self, client: Party | str, server: Party, count: int = 1, *, age_ms: float) -> None:
        """Requests that the server has read and not answered."""
        for _ in range(count):
            self._connection(
                client,
                server,
                {"last_out_age_ms": age_ms, "bytes_out": 500.0},
                {"last_in_age_ms": age_ms, "bytes_in": 500.0},
            )

    def idle(self, client: Party | str, server: Party, count: int = 1, *, age_ms: float = 3_000) -> None:
        """Keep-alive connections: answered, nothing owed."""
        for _ in range(count):
            self._connection(
                client,
                server,
                {"last_out_age_ms": age_ms + 800, "last_in_age_ms": age_ms, "bytes_in": 900.0, "bytes_out": 500.0},
                {"last_in_age_ms": age_ms + 800, "last_out_age_ms": age_ms, "bytes_in": 500.0, "bytes_out": 900.0},
            )

    def streams(self, client: Party | str, server: Party, count: int = 1, *, bytes_moved: float = 9_000) -> None:
        """Answers in progress: with two looks, bytes move towards the client."""
        moved = bytes_moved if self.meta.window_ms else None
        none = 0.0 if self.meta.window_ms else None
        for _ in range(count):
            self._connection(
                client,
                server,
                {"last_out_age_ms": 5_000, "last_in_age_ms": 16, "bytes_in_delta": moved, "bytes_out_delta": none},
                {"last_in_age_ms": 5_000, "last_out_age_ms": 16, "bytes_out_delta": moved, "bytes_in_delta": none},
            )

    def served(self, client: Party | str, server: Party, count: int = 1) -> None:
        """Requests that came and were answered between the looks: short ones, scrapes, health checks."""
        moved = {"bytes_in_delta": 900.0, "bytes_out_delta": 500.0} if self.meta.window_ms else {}
        back = {"bytes_in_delta": 500.0, "bytes_out_delta": 900.0} if self.meta.window_ms else {}
        for _ in range(count):
            self._connection(
                client,
                server,
                {"last_out_age_ms": 60, "last_in_age_ms": 30, **moved},
                {"last_in_age_ms": 60, "last_out_age_ms": 30, **back},
            )

    def unread(self, client: Party | str, server: Party, count: int = 1, *, age_ms: float) -> None:
        """Requests that wait in the server's receive queue."""
        after = 500.0 if self.meta.window_ms else None
        for _ in range(count):
            self._connection(
                client,
                server,
                {"last_out_age_ms": age_ms, "bytes_out": 500.0},
                {"last_in_age_ms": age_ms, "bytes_in": 500.0, "recv_queue": 500.0, "recv_queue_after": after},
            )

    def unaccepted(self, client: Party | str, server: Party, count: int = 1, *, age_ms: float) -> None:
        """Connections with a request that wait in the server's accept queue."""
        after = 500.0 if self.meta.window_ms else None
        for _ in range(count):
            self._connection(
                client,
                server,
                {"last_out_age_ms": age_ms, "bytes_out": 500.0},
                {
                    "last_in_age_ms": age_ms,
                    "bytes_in": 500.0,
                    "recv_queue": 500.0,
                    "recv_queue_after": after,
                    "pid": None,
                    "fd": None,
                    "inode": 0,
                },
            )
        self.backlog(server, count)

    def backlog(self, server: Party, count: int, after: int | None = None) -> None:
        pid = _pid(server)
        for index, socket in enumerate(self.sockets):
            if socket.state == "LISTEN" and socket.pid == pid:
                total = (socket.backlog or 0) + count
                later = float(total if after is None else after) if self.meta.window_ms else None
                self.sockets[index] = replace(socket, backlog=total, recv_queue=float(total), recv_queue_after=later)

    def untaken(
        self, client: Party | str, server: Party, count: int = 1, *, age_ms: float, unread: float = 65_536
    ) -> None:
        """Answers that the client does not read: they fill its receive queue and the server's send queue."""
        after = unread if self.meta.window_ms else None
        queued = 20_000.0 if self.meta.window_ms else None
        for _ in range(count):
            self._connection(
                client,
                server,
                {
                    "last_out_age_ms": age_ms + 5_000,
                    "last_in_age_ms": age_ms,
                    "recv_queue": unread,
                    "recv_queue_after": after,
                },
                {
                    "last_in_age_ms": age_ms + 5_000,
                    "last_out_age_ms": age_ms,
                    "send_queue": 20_000.0,
                    "send_queue_after": queued,
                    "peer_window_bytes": 0.0,
                },
            )

    def answered_and_closed(self, client: Party, server: Party, count: int = 1, *, age_ms: float) -> None:
        """The server answered and closed; the client has read neither."""
        after = 701.0 if self.meta.window_ms else None
        for _ in range(count):
            self._connection(
                client,
                server,
                {
                    "state": "CLOSE-WAIT",
                    "last_out_age_ms": age_ms + 300,
                    "last_in_age_ms": age_ms,
                    "recv_queue": 701.0,
                    "recv_queue_after": after,
                },
                {
                    "state": "FIN-WAIT-2",
                    "last_in_age_ms": age_ms + 300,
                    "last_out_age_ms": age_ms,
                    "pid": None,
                    "fd": None,
                    "inode": 0,
                },
            )

    def _connection(
        self, client: Party | str, server: Party, at_client: dict[str, Any], at_server: dict[str, Any]
    ) -> None:
        self._next_port += 1
        server_pid = _pid(server)
        remote_client = client if isinstance(client, str) else None
        client_pid = None if isinstance(client, str) else _pid(client)
        near = f"{remote_client or '127.0.0.1'}:{self._next_port}"
        far = f"127.0.0.1:{self._ports[server_pid]}"
        still: dict[str, Any] = {"family": "tcp", "state": "ESTAB", "lasting": True}
        if self.meta.window_ms:
            still |= {"bytes_in_delta": 0.0, "bytes_out_delta": 0.0, "recv_queue_after": 0.0, "send_queue_after": 0.0}
        if client_pid is not None:
            own = {"local": near, "remote": far, "pid": client_pid, "fd": len(self.sockets), "inode": self._inode()}
            self.sockets.append(Socket(**{**still, **own, "peer_pid": server_pid, **at_client}))
        own = {"local": far, "remote": near, "pid": server_pid, "fd": len(self.sockets), "inode": self._inode()}
        self.sockets.append(Socket(**{**still, **own, "peer_pid": client_pid, "accepted": True, **at_server}))

    # What else is known.

    def gauges(
        self, engine: Engine, *, tokens: float | None = None, age_ms: float | None = None, **values: float
    ) -> None:
        """All queues of an engine, 0 where not given; `tokens`: counted in the window, 0 unless given."""
        for name, metric in _GAUGES.items():
            self.metrics.append(Metric(name=metric, value=values.get(name, 0.0), pid=engine.http, age_ms=age_ms))
        delta = (tokens or 0.0) if self.meta.window_ms else None
        self.metrics.append(Metric(name="sglang:generation_tokens_total", value=5_000, delta=delta, pid=engine.http))

    def metric(self, pid: int, name: str, value: float, *, delta: float | None = None, **labels: str) -> None:
        self.metrics.append(Metric(name=name, value=value, delta=delta, pid=pid, labels=tuple(labels.items())))

    def stack(self, pid: int, frames: tuple[Frame, ...], *, name: str = "MainThread", same: bool | None = True) -> None:
        if not self.meta.window_ms:
            same = None
        self.python_threads = [t for t in self.python_threads if (t.pid, t.name) != (pid, name)]
        tid = pid if name == "MainThread" else 0
        self.python_threads.append(PythonThread(pid=pid, tid=tid, name=name, frames=frames, same_at_second_look=same))

    def log(self, pid: int, pattern: str, count: int, meaning: str = "") -> None:
        self.log_findings.append(LogFinding(pid=pid, pattern=pattern, count=count, meaning=meaning, last_age_ms=500))

    def logged(self, pid: int, request_id: str, age_ms: float) -> None:
        """A request that the router's log started and did not finish."""
        entry = LogRequest(pid=pid, request_id=request_id, method="POST", path="/v1/chat/completions", age_ms=age_ms)
        self.log_requests.append(entry)

    def lose(self, collector: str, status: Outcome.Status = Status.TIMED_OUT) -> Scene:
        """This collector brought nothing. Processes stay known by pid and role: other looks find them too."""
        self.outcomes[collector] = Outcome(collector=collector, status=status, detail="looking")
        match collector:
            case "snapshot_processes":
                for pid in self.processes:
                    self.change(pid, state="", threads=(), cpu_ms_delta=None)
            case "snapshot_sockets":
                self.sockets = []
            case "snapshot_python_stacks":
                self.python_threads = []
            case "sample_metrics":
                self.metrics = []
            case "read_logs":
                self.log_findings, self.log_requests = [], []
            case "snapshot_host":
                self.host = Host()
        return self

    def snapshot(self) -> Snapshot:
        return Snapshot(
            meta=self.meta,
            outcomes=tuple(self.outcomes.values()),
            processes=tuple(self.processes.values()),
            sockets=tuple(self.sockets),
            metrics=tuple(self.metrics),
            python_threads=tuple(self.python_threads),
            log_findings=tuple(self.log_findings),
            log_requests=tuple(self.log_requests),
            host=self.host,
            gpus=self.gpus,
            kernel_events=self.kernel_events,
        )

    def conclude(self) -> Snapshot:
        return conclude(self.snapshot())

    def verdict(self) -> Verdict:
        verdict = self.conclude().verdict
        assert verdict is not None
        return verdict

    def _inode(self) -> int:
        self._next_inode += 1
        return self._next_inode


def _pid(party: Party) -> int:
    return party.http if isinstance(party, Engine) else party
