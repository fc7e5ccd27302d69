"""What is sampled once a second: bytes, events and requests of each edge, CPU and threads of processes, pressure.

Reads the ledger, /proc/PID/{stat,task/*/stat} and /proc/pressure: nothing that can block. What costs more on a large
host is done less often, so that sampling takes a fixed share of one CPU; in between the last value stands.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from freezeframe.agentd.bpf import layout
from freezeframe.agentd.bpf.layout import Connection
from freezeframe.agentd.host import Host, procfs, system
from freezeframe.agentd.recorder.history import INTERVAL_S, History, Key
from freezeframe.agentd.recorder.peers import Peers

# CPU time that each of the three samplers may take, of the time that passes.
_SHARE = 0.005
_LONGEST_S = 15.0
# Processes whose CPU and threads are sampled, those with the most connections.
_PROCESSES = 64
_BLOCKED = "D"
_RUNNING = "R"


class Counted(NamedTuple):
    """One connection of the ledger."""

    number: int
    connection: Connection
    # Requests in flight on it.
    in_flight: int


class Edge(NamedTuple):
    """Client and server; 0 and an address where the client, 0 and an address where the server, is on another host."""

    client_pid: int
    server_pid: int
    address: str


class EdgeNow(NamedTuple):
    """One edge at the last sample."""

    edge: Edge
    in_flight: int
    # When the oldest of these began, CLOCK_MONOTONIC nanoseconds; 0 when there is none.
    oldest_ns: int
    # Bytes per second from the server and to it.
    answer_rate: float
    request_rate: float
    # Last byte from the server; 0 when none came.
    last_answer_ns: int
    # When the request that has waited the longest for the next byte of its answer began to; 0 when there is none.
    waiting_ns: int
    # Server-sent events per second from the server, as many of them as were written one by one.
    event_rate: float


class _Paced:
    """Does a thing as often as its share of the CPU allows."""

    def __init__(self, what: Callable[[], dict[Key, float]]) -> None:
        self._what = what
        self._not_before = 0.0
        self._spent_s = 0.0
        self._last: dict[Key, float] = {}

    def __call__(self, now: float) -> dict[Key, float]:
        if now >= self._not_before:
            begin = time.thread_time()
            self._last = self._what()
            spent_s = time.thread_time() - begin
            # One that was slow once, for a garbage collection, is not slow.
            pause_s = min(spent_s, self._spent_s) / _SHARE
            self._spent_s = spent_s
            # Up to the interval it is the next turn; beyond, turns are left out.
            self._not_before = now + min(_LONGEST_S, pause_s) if pause_s > INTERVAL_S else now
        return self._last


class Sampler:
    """Fills a history; `step` once a second."""

    def __init__(
        self,
        counted: Callable[[], Iterator[Counted]],
        *,
        host: Host = Host(),  # noqa: B008 - frozen
        history: History | None = None,
    ) -> None:
        """`counted` gives all connections of the ledger."""
        self.history = history or History()
        self.edges: list[EdgeNow] = []
        self._counted = counted
        self._host = host
        self._peers = Peers(proc=host.proc().rstrip("/"))
        # By connection: bytes in and out, and events, at the last sample.
        self._bytes: dict[int, tuple[int, int, int]] = {}
        self._sampled_at = 0.0
        self._present: dict[int, Connection] = {}
        self._processes: list[int] = []
        self._cpu: dict[int, tuple[float, float]] = {}
        self._stalled = system.Stalled(host)
        self._paced = [_Paced(each) for each in (self._sample_edges, self._cpu_and_threads, self._pressure)]

    def step(self) -> None:
        """Take one sample."""
        now = self._host.clock.monotonic()
        if self._present:
            self._peers.learn(self._present)
        values: dict[Key, float] = {}
        for each in self._paced:
            values |= each(now)
        self.history.add(values)

    def _sample_edges(self) -> dict[Key, float]:
        now = self._host.clock.monotonic()
        elapsed = max(0.001, now - self._sampled_at) if self._sampled_at else 0.0
        self._sampled_at = now
        counted = {each.number: each for each in self._counted() if each.connection.side != layout.NO_SIDE}
        # Whoever is new among them is asked for at the next sample, on the account of `Peers`.
        self._present = {number: each.connection for number, each in counted.items()}
        of_processes: dict[int, int] = {}
        totals: dict[Edge, list[float]] = {}
        before, self._bytes = self._bytes, {}
        for number, (_, connection, in_flight) in counted.items():
            here = connection.in_bytes, connection.out_bytes, connection.events
            self._bytes[number] = here
            of_processes[connection.tgid] = of_processes.get(connection.tgid, 0) + 1
            edge = self._edge(number, connection)
            if edge is None:
                continue
            was = before.get(number, (0, 0, 0) if elapsed else here)
            moved_in, moved_out, events = (after - then for after, then in zip(here, was, strict=True))
            served = connection.side == layout.SERVER
            answer, request = (moved_out, moved_in) if served else (moved_in, moved_out)
            last_answer = connection.out_ns if served else connection.in_ns
            total = totals.setdefault(edge, [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
            total[0] += in_flight
            if in_flight and (not total[1] or connection.request_ns < total[1]):
                total[1] = connection.request_ns
            total[2] += answer / elapsed if elapsed else 0.0
            total[3] += request / elapsed if elapsed else 0.0
            total[4] = max(total[4], last_answer)
            total[5] += events / elapsed if elapsed else 0.0
            waits_since = max(connection.request_ns, last_answer)
            if in_flight and (not total[6] or waits_since < total[6]):
                total[6] = waits_since
        self._processes = sorted(of_processes, key=lambda pid: -of_processes[pid])[:_PROCESSES]
        self.edges = [
            EdgeNow(edge, int(total[0]), int(total[1]), total[2], total[3], int(total[4]), int(total[6]), total[5])
            for edge, total in totals.items()
        ]
        values: dict[Key, float] = {}
        for each in self.edges:
            client, server, address = each.edge
            for kind, value in (
                ("answer bytes", each.answer_rate),
                ("answer events", each.event_rate),
                ("request bytes", each.request_rate),
                ("requests", float(each.in_flight)),
            ):
                values[Key(kind, address, server, client)] = value
        return values

    def _edge(self, number: int, connection: Connection) -> Edge | None:
        peer = self._peers.of(number)
        if connection.side == layout.SERVER:
            return Edge(peer.pid, connection.tgid, peer.address)
        # The server's end counts where it is on this host.
        return None if peer.pid else Edge(connection.tgid, 0, peer.address)

    def _cpu_and_threads(self) -> dict[Key, float]:
        values: dict[Key, float] = {}
        before, self._cpu = self._cpu, {}
        for pid in self._processes:
            with suppress(procfs.ProcfsError, OSError):
                stat = procfs.stat(self._host.proc(pid))
                now = self._host.clock.monotonic()
                self._cpu[pid] = now, stat.cpu_ms
                if pid in before and now > before[pid][0]:
                    spent = (stat.cpu_ms - before[pid][1]) / (now - before[pid][0]) / 10.0
                    values[Key("cpu", "", pid)] = max(0.0, spent)
                states = self._states(pid)
                values[Key("running threads", "", pid)] = float(states.count(_RUNNING))
                values[Key("blocked threads", "", pid)] = float(states.count(_BLOCKED))
        return values

    def _states(self, pid: int) -> str:
        found = []
        for tid in os.listdir(self._host.proc(pid, "task")):
            with suppress(procfs.ProcfsError, OSError):
                found.append(procfs.stat(self._host.proc(pid, "task", tid)).state)
        return "".join(found)

    def _pressure(self) -> dict[Key, float]:
        return {Key("pressure", resource): share for resource, share in self._stalled.since().items()}
