"""A fleet of many hosts, each with a snapshot as large as that of a node with eight GPUs: harnesses, routers, engines.

    cast = Cast(hosts=500)
    data = cast.file(137)  # bytes of the .ffz of one host

Every harness sends to every router, every router to every engine. On one decode host the batch does not end: its
requests hang, the answers of all others move. The records that prove it are made here, with both ends of every
connection on the two hosts; what else is in a snapshot are the records of a recorded one, as many as such a node has,
each changed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from freezeframe.judge import file
from freezeframe.v1 import meta_pb2, process_pb2, snapshot_pb2
from tests.replay.cases import CORPUS

FRONTS = 4
STUCK = 30
# A request that gets no byte; an answer in progress; an idle keep-alive connection. Of each the ages of the last byte
# of the request and of the answer, and bytes of the answer between the looks.
HANGS, STREAMS, RESTS = "hangs", "streams", "rests"
_ASKED = {HANGS: 41_000.0, STREAMS: 5000.0, RESTS: 3800.0}
_ANSWERED = {HANGS: None, STREAMS: 16.0, RESTS: 3000.0}
_MOVED = {HANGS: 0.0, STREAMS: 9000.0, RESTS: 0.0}
RECORDED = "slow-prefill-sglang-router-0"
# Of a node with eight GPUs.
THREADS, TASKS, UNIX_SOCKETS, RANKS, SERIES, EVENTS = 3600, 400, 200, 8, 60, 12_000
HTTP, SCHEDULER, DETOKENIZER, ROUTER, CLIENT = 5000, 5001, 5002, 4000, 3000
_ROUTER_PORT, _ENGINE_PORT = 30_000, 31_000
_BATCH = (
    ("forward_batch_generation", "sglang/srt/managers/tp_worker.py", 240),
    ("Scheduler.run_batch", "sglang/srt/managers/scheduler.py", 1830),
    ("Scheduler.event_loop_normal", "sglang/srt/managers/scheduler.py", 1100),
)
_RESTS = (
    ("run", "asyncio/runners.py", 118),
    ("asyncio_run", "uvicorn/_compat.py", 30),
    ("run", "uvicorn/server.py", 65),
)
_QUEUES = (
    "sglang:num_running_reqs",
    "sglang:num_queue_reqs",
    "sglang:num_decode_prealloc_queue_reqs",
    "sglang:num_decode_transfer_queue_reqs",
)


@dataclass(frozen=True)
class Cast:
    """Who is there: FRONTS harnesses, FRONTS routers, then engines, every second one for decode."""

    hosts: int

    @property
    def culprit(self) -> int:
        """The decode host that holds the requests."""
        first = 2 * FRONTS + 1
        return first + 2 * ((self.hosts - first) // 4)

    def name(self, host: int) -> str:
        """What the host calls itself."""
        kind = "harness" if host < FRONTS else "router" if host < 2 * FRONTS else ("prefill", "decode")[host % 2]
        return f"{kind}-{host:03d}"

    def file(self, host: int) -> bytes:
        """The bytes that its agent sends."""
        message = snapshot_pb2.Snapshot.FromString(self._filling)
        _Host(self, host, message).fill()
        return file.write([message], "tests")

    @cached_property
    def _filling(self) -> bytes:
        return filling(random.Random(1))


def address(host: int) -> str:
    """Address of a host."""
    return f"10.9.{host // 250}.{host % 250 + 1}"


class _Host:
    """Writes what one host of the path shows."""

    def __init__(self, cast: Cast, host: int, message: snapshot_pb2.Snapshot) -> None:
        self._cast, self._host, self._to = cast, host, message
        self._next_fd = 10
        message.meta.CopyFrom(
            meta_pb2.Meta(
                host=cast.name(host), snapshot_id=f"{cast.name(host)}-1", started_at="2026-11-30T12:00:00.000Z",
                window_ms=1000.0, duration_ms=1800.0, agent_version="0.1.0", schema=1,
            )
        )  # fmt: skip
        names = ("snapshot_processes", "snapshot_sockets", "snapshot_python_stacks", "sample_metrics", "read_logs")
        message.outcomes.extend(
            meta_pb2.Outcome(collector=name, status=meta_pb2.Outcome.Status.OK, duration_ms=40.0) for name in names
        )

    def fill(self) -> None:
        """Add its processes, and its end of each of their connections."""
        if self._host < FRONTS:
            self._process(CLIENT, "python harness.py", ["python", "harness.py"])
            for router in range(FRONTS, 2 * FRONTS):
                for number, how in enumerate(self._from_clients()):
                    self._asks(CLIENT, router, _ROUTER_PORT, number, how)
        elif self._host < 2 * FRONTS:
            self._process(ROUTER, "sglang::router", ["sglang::router"])
            self._listen(ROUTER, _ROUTER_PORT)
            for client in range(FRONTS):
                for number, how in enumerate(self._from_clients()):
                    self._serves(ROUTER, client, _ROUTER_PORT, number, how)
            for engine in range(2 * FRONTS, self._cast.hosts):
                for number, how in enumerate(self._to_engine(engine)):
                    self._asks(ROUTER, engine, _ENGINE_PORT, number, how)
        else:
            self._engine()

    def _from_clients(self) -> list[str]:
        """How the connections of each client to each router are."""
        return [HANGS] * STUCK + [STREAMS] * (self._cast.hosts // 4)

    def _to_engine(self, engine: int) -> list[str]:
        """How the connections of each router to an engine are."""
        if engine == self._cast.culprit:
            return [HANGS] * (STUCK * FRONTS)
        return [RESTS] * 2 + [STREAMS if engine % 2 else RESTS] * 2

    def _engine(self) -> None:
        kind = ("prefill", "decode")[self._host % 2]
        argv = ["python", "-m", "sglang.launch_server", "--port", str(_ENGINE_PORT), "--disaggregation-mode", kind]
        self._process(HTTP, " ".join(argv), argv)
        self._process(SCHEDULER, "sglang::scheduler", argv, HTTP, cpu_ms=900.0)
        self._process(DETOKENIZER, "sglang::detokenizer", argv, HTTP)
        self._listen(HTTP, _ENGINE_PORT)
        held = self._host == self._cast.culprit
        self._stack(HTTP, _RESTS, same=True)
        self._stack(SCHEDULER, _BATCH, same=held)
        running = STUCK * FRONTS * FRONTS if held else 2
        for name, value in zip(_QUEUES, (running, 0, 0, 0), strict=True):
            self._to.metrics.add(name=name, value=value, pid=HTTP, age_ms=800.0, source="mmap")
        tokens = 0.0 if held else 400.0
        self._to.metrics.add(name="sglang:generation_tokens_total", value=1e6, delta=tokens, pid=HTTP, source="mmap")
        for router in range(FRONTS, 2 * FRONTS):
            for number, how in enumerate(self._to_engine(self._host)):
                self._serves(HTTP, router, _ENGINE_PORT, number, how)

    def _process(self, pid: int, title: str, argv: list[str], parent: int = 1, *, cpu_ms: float = 4.0) -> None:
        main = process_pb2.Thread(
            tid=pid, state="S", state_after="S", cpu_ms=1e6, cpu_ms_delta=cpu_ms, voluntary_switches_delta=90
        )
        self._to.processes.add(
            pid=pid, title=title, exe="/usr/bin/python3.11", comm=title[:15], argv=argv, argv_source="own", state="S",
            parent_pid=parent, age_ms=3.6e6, threads=[main], thread_count=1, cpu_ms_delta=cpu_ms, netns=4026531833,
        )  # fmt: skip

    def _stack(self, pid: int, frames: tuple[tuple[str, str, int], ...], *, same: bool) -> None:
        thread = self._to.python_threads.add(pid=pid, tid=pid, name="MainThread", same_at_second_look=same)
        for function, path, line in frames:
            thread.frames.add(function=function, file=path, line=line)

    def _listen(self, pid: int, port: int) -> None:
        self._to.sockets.add(
            family="tcp", state="LISTEN", local=f"0.0.0.0:{port}", remote="0.0.0.0:0", pid=pid, fd=9, backlog=0,
            backlog_limit=4096, recv_queue_after=0, inode=pid, lasting=True, netns=4026531833,
        )  # fmt: skip

    def _asks(self, pid: int, server: int, port: int, number: int, how: str) -> None:
        local = f"{address(self._host)}:{_own_port(self._host, server, number)}"
        sent, got = ({"bytes_out": 500.0}, {"bytes_in": 9000.0})
        ages = {"last_out_age_ms": _ASKED[how], "last_in_age_ms": _ANSWERED[how]}
        delta = {"bytes_in_delta": _MOVED[how], "bytes_out_delta": 0.0}
        self._socket(pid, local, f"{address(server)}:{port}", {**sent, **got, **ages, **delta}, accepted=False)

    def _serves(self, pid: int, client: int, port: int, number: int, how: str) -> None:
        remote = f"{address(client)}:{_own_port(client, self._host, number)}"
        sent, got = ({"bytes_out": 9000.0}, {"bytes_in": 500.0})
        ages = {"last_in_age_ms": _ASKED[how], "last_out_age_ms": _ANSWERED[how]}
        delta = {"bytes_out_delta": _MOVED[how], "bytes_in_delta": 0.0}
        self._socket(pid, f"{address(self._host)}:{port}", remote, {**sent, **got, **ages, **delta}, accepted=True)

    def _socket(self, pid: int, local: str, remote: str, moved: dict[str, float | None], *, accepted: bool) -> None:
        self._next_fd += 1
        self._to.sockets.add(
            family="tcp", state="ESTAB", local=local, remote=remote, pid=pid, fd=self._next_fd, accepted=accepted,
            inode=100_000 + self._next_fd, netns=4026531833, lasting=True, recv_queue_after=0, send_queue_after=0,
            rtt_ms=0.2, retransmits_total=0, **moved,
        )  # fmt: skip


def _own_port(client: int, server: int, number: int) -> int:
    return 32_768 + (client * 7919 + server * 131 + number) % 28_000


def filling(chance: random.Random) -> bytes:
    """What a node with eight GPUs has beside, as bytes of a Snapshot: none of it on the path."""
    (recorded,) = file.read((CORPUS / f"{RECORDED}.ffz").read_bytes()).hosts
    into = snapshot_pb2.Snapshot()
    threads = [thread for process in recorded.processes for thread in process.threads]
    for rank in range(RANKS):
        pid = 9000 + rank
        process = into.processes.add()
        process.CopyFrom(recorded.processes[0])
        process.ClearField("threads")
        process.ClearField("listening_ports")
        process.pid, process.title, process.comm, process.product = pid, f"worker {rank}", "worker", ""
        process.argv[:] = ["worker", str(rank)]
        process.exe, process.engine_pid, process.disaggregation = "/usr/bin/worker", 0, ""
        process.role = process_pb2.Process.Role.OTHER
        process.thread_count = THREADS // RANKS
        for number in range(THREADS // RANKS):
            thread = process.threads.add()
            thread.CopyFrom(chance.choice(threads))
            thread.tid = pid if number == 0 else 100_000 + rank * 1000 + number
            thread.name = f"{thread.name[:9]}-{number}"
            thread.cpu_ms, thread.voluntary_switches_delta = chance.randrange(10**6), chance.randrange(3000)
            thread.syscall_arguments[:] = [hex(chance.getrandbits(47)) for _ in thread.syscall_arguments]
            native = into.native_threads.add()
            native.CopyFrom(chance.choice(recorded.native_threads))
            native.pid, native.tid, native.name = pid, thread.tid, thread.name
            native.wait = f"futex wait at {chance.getrandbits(47):#x}, no timeout"
            for frame in native.frames:
                frame.offset = chance.randrange(10**7)
        for number in range(20):
            stack = into.python_threads.add()
            stack.CopyFrom(chance.choice(recorded.python_threads))
            stack.pid, stack.tid, stack.name = pid, 100_000 + rank * 1000 + number + 1, f"Thread-{number}"
            stack.cpu_ms_delta = chance.random()
        for metric in recorded.metrics:
            own = into.metrics.add()
            own.CopyFrom(metric)
            own.pid, own.value, own.source = pid, chance.random() * 1e6, f"mmap counter_{pid}.db"
            own.labels["tp_rank"] = str(rank)
    for number in range(TASKS):
        task = into.asyncio_tasks.add()
        task.CopyFrom(chance.choice(recorded.asyncio_tasks))
        task.pid, task.name, task.address = 9000, f"Task-{number}", hex(chance.getrandbits(47))
        task.first_seen_age_ms, task.coroutine = chance.random() * 1e5, hex(chance.getrandbits(47))
        task.ClearField("waits_for")
        task.ClearField("fd")
        task.peer_address, task.request_id = f"10.8.0.1:{number}", f"chat-{chance.getrandbits(64):x}"
    for number in range(UNIX_SOCKETS):
        inode = 900_000 + number
        into.sockets.add(
            family="unix", state="ESTAB", local=f"/tmp/nccl-{chance.getrandbits(64):x}", pid=9000 + number % RANKS,
            fd=100 + number, inode=inode, peer_inode=inode ^ 1, netns=4026531833, lasting=True,
        )  # fmt: skip
    for event in islice(_again(recorded.connection_events), EVENTS):
        own = into.connection_events.add()
        own.CopyFrom(event)
        own.client, own.last_age_ms = f"10.7.{chance.randrange(250)}.{chance.randrange(250)}", chance.random() * 9e5
    into.history.interval_ms = 1000.0
    for series in islice(_again(recorded.history.series), SERIES):
        own = into.history.series.add()
        own.CopyFrom(series)
        own.subject, own.pid = f"10.7.0.{chance.randrange(250)}", 9000
        own.values[:] = [round(chance.random() * 1e5, 1) for _ in range(900)]
    for line in islice(_again(recorded.log_requests), 60):
        own = into.log_requests.add()
        own.CopyFrom(line)
        own.pid, own.request_id = 9000, f"chatcmpl-{chance.getrandbits(96):x}"
    into.host.CopyFrom(recorded.host)
    into.recorder.CopyFrom(recorded.recorder)
    into.recorder.ClearField("resting")
    return into.SerializeToString()


def _again(records: Any) -> Any:
    while True:
        yield from records
