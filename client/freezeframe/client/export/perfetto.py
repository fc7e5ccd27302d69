"""Perfetto's own trace (perfetto.dev, protos/perfetto/trace): for ui.perfetto.dev and trace_processor.

A track per thread has the slices "look 1" and "look 2", the stack of that look inside; each process has its requests,
open from when they began, with flows to the same request one hop further, and the counters of the history. Where some
lead from host to host, all requests stand in one group, "requests of all hosts". Time is that of the clock on the wall
of who asked, so that hosts stand beside each other; a look is drawn from its begin to the next one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from freezeframe.client.export import stacks
from freezeframe.client.export.across import End, references
from freezeframe.client.export.findings import standing
from freezeframe.client.export.moments import length_ns, unix_ns
from freezeframe.client.export.packets import BEGIN, COUNTER, END, INSTANT, Machine, Packets, Value
from freezeframe.client.render.guard import clean
from freezeframe.client.render.values import enum_name
from freezeframe.v1 import host_pb2, process_pb2, request_pb2, snapshot_pb2

_UNITS = {
    "answer bytes": "B/s",
    "request bytes": "B/s",
    "answer events": "1/s",
    "requests": "in flight",
    "cpu": "% of one",
    "pressure": "%",
    "tokens": "1/s",
    "gpu use": "%",
    "gpu power": "W",
    "kernel": "events",
}
# A slice without length is not seen.
_LEAST_NS = 1_000_000


def render(
    snapshots: Iterable[snapshot_pb2.Snapshot],
    ahead_ms: Sequence[float] | None = None,
    ways: Iterable[tuple[End, End]] = (),
) -> Iterator[bytes]:
    """Give the file in pieces, one host after the other; each is a machine of its own.

    `ahead_ms` has, for each of several hosts that were captured together, by how much its clock is ahead; `ways` the
    pairs of requests between them that a flow leads over (`export.across`).
    """
    packets = Packets()
    uuids = iter(range(1, 1 << 62))
    first = Machine(packets, 0, uuids)
    across = _Across(first, ways)
    for number, snapshot in enumerate(snapshots):
        ahead = ahead_ms[number] if ahead_ms else 0.0
        machine = Machine(packets, number, uuids) if number else first
        _Host(machine, number, snapshot, length_ns(ahead) - length_ns(-ahead), across).write()
        yield packets.data()


class _Across:
    """Requests that go from host to host, in one group of tracks: flows lead nowhere but within one machine."""

    def __init__(self, machine: Machine, ways: Iterable[tuple[End, End]]) -> None:
        self.machine = machine
        self.flows: dict[End, list[int]] = {}
        # Where they begin: what the host itself takes for the same request one hop further does not count there.
        self.begins: set[End] = set()
        for way in ways:
            flow = machine.uuid()
            self.begins.add(way[0])
            for end in way:
                self.flows.setdefault(end, []).append(flow)
        self.track = machine.track("requests of all hosts", 0) if self.flows else 0


class _Host:
    """Writes one host's share."""

    def __init__(
        self, to: Machine, number: int, snapshot: snapshot_pb2.Snapshot, ahead_ns: int, across: _Across
    ) -> None:
        self._to = to
        self._number = number
        self._snapshot = snapshot
        self._across = across
        meta = snapshot.meta
        self._first_ns = max(unix_ns(meta.started_at) - ahead_ns, 0)
        window_ns = length_ns(meta.window_ms)
        self._second_ns = self._first_ns + window_ns if window_ns else None
        self._last_ns = self._first_ns + max(length_ns(meta.duration_ms), window_ns + _LEAST_NS)
        self._known = {process.pid: process for process in snapshot.processes}
        self._processes: dict[int, int] = {}
        self._host_track = 0

    def write(self) -> None:
        self._to.clocks(self._first_ns)
        self._host_track = self._to.track(f"{self._snapshot.meta.host}: verdict", 0)
        self._verdict()
        for process in self._snapshot.processes:
            self._process(process.pid)
        self._threads()
        self._requests()
        for series in self._snapshot.history.series:
            self._counter(series)

    def _verdict(self) -> None:
        for verdict in standing(self._snapshot):
            values: dict[str, Value] = {
                "summary": verdict.summary,
                "hop": verdict.hop,
                "confidence": enum_name(verdict, "confidence"),
                "holder pids": " ".join(map(str, verdict.holder_pids)),
                "snapshot": self._snapshot.meta.snapshot_id,
            }
            self._to.event(INSTANT, self._host_track, self._first_ns, enum_name(verdict, "code"), values)

    def _threads(self) -> None:
        stacked = stacks.looks(self._snapshot)
        by_tid = {(seen.pid, seen.tid): seen for seen in stacked if seen.tid}
        for process in self._snapshot.processes:
            for thread in process.threads:
                self._thread(process.pid, thread, by_tid.pop((process.pid, thread.tid), None))
        for seen in stacked:
            if not seen.tid or (seen.pid, seen.tid) in by_tid:
                self._thread(seen.pid, process_pb2.Thread(tid=seen.tid, name=seen.name), seen)

    def _thread(self, pid: int, thread: process_pb2.Thread, seen: stacks.Looks | None) -> None:
        track = self._thread_track(pid, thread.tid, thread.name)
        values: dict[str, Value] = {"state": thread.state, "wchan": thread.wchan, "syscall": thread.syscall}
        ends_ns = self._last_ns if self._second_ns is None else self._second_ns
        self._look("look 1", track, (self._first_ns, ends_ns), values, seen.first if seen else ())
        if self._second_ns is None:
            return
        values = {"state": thread.state_after}
        if thread.HasField("cpu_ms_delta"):
            values["cpu ms since look 1"] = thread.cpu_ms_delta
        self._look("look 2", track, (self._second_ns, self._last_ns), values, seen.second if seen else ())

    def _look(
        self,
        name: str,
        track: int,
        time_ns: tuple[int, int],
        values: Mapping[str, Value],
        frames: Sequence[stacks.Frame],
    ) -> None:
        begin_ns, end_ns = time_ns
        self._to.event(BEGIN, track, begin_ns, name, values)
        for frame in frames:
            where = f"{frame.file}:{frame.line}" if frame.line else frame.file
            self._to.event(BEGIN, track, begin_ns, frame.name, {"at": where} if where else {})
        for _ in range(len(frames) + 1):
            self._to.event(END, track, end_ns)

    def _requests(self) -> None:
        requests = self._snapshot.requests
        ends = [self._end(request) for request in requests]
        flows: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            if ends[index] in self._across.begins:
                continue
            for further in references(request.upstream, len(requests)):
                flow = self._to.uuid()
                flows.setdefault(index, []).append(flow)
                flows.setdefault(further, []).append(flow)
        for index, request in enumerate(requests):
            # Those of one name and parent are drawn together.
            to, track = self._to_requests(request)
            begin_ns = max(self._first_ns - length_ns(request.age_ms), 0)
            name = " ".join(filter(None, (request.method, request.path))) or "request"
            led = (*flows.get(index, ()), *self._across.flows.get(ends[index], ()))
            # Without an end: it is in flight.
            to.event(BEGIN, track, begin_ns, name, _of_request(request), led)

    def _to_requests(self, request: request_pb2.Request) -> tuple[Machine, int]:
        """Give a new track for a request: with its process, or where flows lead from host to host with all others."""
        if self._across.track:
            of = f"{self._role(request.pid)} (pid {request.pid})" if request.HasField("pid") else "requests"
            name = f"{self._snapshot.meta.host}: {of}"
            return self._across.machine, self._across.machine.track(name, self._across.track)
        parent = self._process(request.pid) if request.HasField("pid") else self._host_track
        return self._to, self._to.track("requests", parent)

    def _end(self, request: request_pb2.Request) -> End:
        descriptor = request.fd if request.HasField("fd") else -1
        return self._number, request.pid, descriptor, request.side == request_pb2.Request.Side.SERVER

    def _counter(self, series: host_pb2.Series) -> None:
        parent = self._process(series.pid) if series.HasField("pid") else 0
        names = [series.kind, series.subject]
        if series.HasField("peer_pid"):
            names.append(f"for {self._name(series.peer_pid)}")
        track = self._to.track(" ".join(filter(None, names)), parent, unit=_UNITS.get(series.kind, ""))
        step_ns = length_ns(self._snapshot.history.interval_ms)
        last = len(series.values) - 1
        before = math.nan
        for index, value in enumerate(series.values):
            # A counter keeps its value until the next one.
            if math.isnan(value) or (value == before and index != last):
                continue
            before = value
            event = self._to.event(COUNTER, track, max(self._first_ns - (last - index) * step_ns, 0))
            event.double_counter_value = value

    def _process(self, pid: int) -> int:
        if pid not in self._processes:
            self._processes[pid] = uuid = self._to.uuid()
            known = self._known.get(pid)
            descriptor = self._to.packet().track_descriptor
            descriptor.uuid = uuid
            descriptor.process.pid = pid
            descriptor.process.process_name = clean(self._name(pid))
            if known is not None:
                descriptor.process.process_labels.append(self._role(pid))
            if self._number:
                descriptor.process.process_labels.append(clean(self._snapshot.meta.host))
        return self._processes[pid]

    def _role(self, pid: int) -> str:
        known = self._known.get(pid)
        return enum_name(known, "role").lower().replace("_", "-") if known is not None else "process"

    def _name(self, pid: int) -> str:
        known = self._known.get(pid)
        return (known.title or known.comm) if known is not None else f"pid {pid}"

    def _thread_track(self, pid: int, tid: int, name: str) -> int:
        if not tid:
            return self._to.track(f"thread {name}", self._process(pid))
        self._process(pid)
        descriptor = self._to.packet().track_descriptor
        descriptor.uuid = uuid = self._to.uuid()
        descriptor.thread.pid, descriptor.thread.tid, descriptor.thread.thread_name = pid, tid, clean(name)
        return uuid


def _of_request(request: request_pb2.Request) -> dict[str, Value]:
    values: dict[str, Value] = {
        "request id": request.request_id,
        "age ms": request.age_ms,
        "at least": request.at_least,
        "side": enum_name(request, "side").lower(),
        "peer": request.peer_address,
        "streaming": request.streaming,
    }
    for name in ("in_bytes", "out_bytes", "last_in_age_ms", "last_out_age_ms"):
        if request.HasField(name):
            values[name.replace("_", " ")] = getattr(request, name)
    return values
