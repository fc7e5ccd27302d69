"""Perfetto's own trace (perfetto.dev, protos/perfetto/trace): for ui.perfetto.dev and trace_processor.

A track per thread has the slices "look 1" and "look 2", the stack of that look inside; each process has its requests,
open from when they began, with flows to the same request one hop further, and the counters of the history. Time is that
of the clock on the wall, so that hosts stand beside each other; a look is drawn from its begin to the next one.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from freezeframe.client.export import stacks
from freezeframe.client.export.described import (
    BOOL,
    DOUBLE,
    FIXED64,
    INT32,
    INT64,
    MANY,
    MESSAGE,
    ONE,
    STRING,
    UINT32,
    UINT64,
    Field,
    message_class,
)
from freezeframe.client.export.findings import standing
from freezeframe.client.export.moments import length_ns, unix_ns
from freezeframe.client.render.guard import clean
from freezeframe.client.render.values import enum_name
from freezeframe.v1 import host_pb2, process_pb2, request_pb2, snapshot_pb2

_BEGIN, _END, _INSTANT, _COUNTER = 1, 2, 3, 4
_REALTIME, _BOOTTIME = 1, 6
_PACKAGE = "freezeframe.perfetto"
_MESSAGES: dict[str, tuple[Field, ...]] = {
    "Clock": (("clock_id", 1, UINT32, ONE, ""), ("timestamp", 2, UINT64, ONE, "")),
    "ClockSnapshot": (("clocks", 1, MESSAGE, MANY, "Clock"),),
    # Pids are int32 there; one that is none must not end the export, and a varint is written the same.
    "ProcessDescriptor": (
        ("pid", 1, INT64, ONE, ""),
        ("process_name", 6, STRING, ONE, ""),
        ("process_labels", 8, STRING, MANY, ""),
    ),
    "ThreadDescriptor": (("pid", 1, INT64, ONE, ""), ("tid", 2, INT64, ONE, ""), ("thread_name", 5, STRING, ONE, "")),
    "CounterDescriptor": (("unit_name", 6, STRING, ONE, ""),),
    "TrackDescriptor": (
        ("uuid", 1, UINT64, ONE, ""),
        ("name", 2, STRING, ONE, ""),
        ("process", 3, MESSAGE, ONE, "ProcessDescriptor"),
        ("thread", 4, MESSAGE, ONE, "ThreadDescriptor"),
        ("parent_uuid", 5, UINT64, ONE, ""),
        ("counter", 8, MESSAGE, ONE, "CounterDescriptor"),
    ),
    "DebugAnnotation": (
        ("bool_value", 2, BOOL, ONE, ""),
        ("int_value", 4, INT64, ONE, ""),
        ("double_value", 5, DOUBLE, ONE, ""),
        ("string_value", 6, STRING, ONE, ""),
        ("name", 10, STRING, ONE, ""),
    ),
    "TrackEvent": (
        ("debug_annotations", 4, MESSAGE, MANY, "DebugAnnotation"),
        ("type", 9, INT32, ONE, ""),
        ("track_uuid", 11, UINT64, ONE, ""),
        ("name", 23, STRING, ONE, ""),
        ("double_counter_value", 44, DOUBLE, ONE, ""),
        ("flow_ids", 47, FIXED64, MANY, ""),
    ),
    "TracePacket": (
        ("clock_snapshot", 6, MESSAGE, ONE, "ClockSnapshot"),
        ("timestamp", 8, UINT64, ONE, ""),
        ("trusted_packet_sequence_id", 10, UINT32, ONE, ""),
        ("track_event", 11, MESSAGE, ONE, "TrackEvent"),
        ("track_descriptor", 60, MESSAGE, ONE, "TrackDescriptor"),
        ("machine_id", 98, UINT32, ONE, ""),
    ),
    "Trace": (("packet", 1, MESSAGE, MANY, "TracePacket"),),
}
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
_AT_ONCE = 10_000
_REFERENCE = re.compile(r"requests\[(\d{1,9})\]", re.ASCII)

_Value = str | float | bool


def render(snapshots: Iterable[snapshot_pb2.Snapshot], ahead_ms: Sequence[float] | None = None) -> Iterator[bytes]:
    """Give the file in pieces, one host after the other; each is a machine of its own.

    `ahead_ms` has, for each of several hosts that were captured together, by how much its clock is ahead.
    """
    packets = _Packets()
    uuids = iter(range(1, 1 << 62))
    for machine, snapshot in enumerate(snapshots):
        ahead_ns = round(ahead_ms[machine] * 1e6) if ahead_ms else 0
        _Host(packets, snapshot, machine, uuids, ahead_ns).write()
        yield packets.data()


class _Packets:
    """The packets of a trace, written out by the thousand: as messages they take ten times the memory of their bytes.

    Traces one behind the other are one trace.
    """

    def __init__(self) -> None:
        self._trace = _trace_class()()
        self._written: list[bytes] = []

    def add(self, sequence: int) -> Any:
        """Give a new packet, to be filled before the next one is asked for."""
        if len(self._trace.packet) >= _AT_ONCE:
            self._write()
        return self._trace.packet.add(trusted_packet_sequence_id=sequence)

    def data(self) -> bytes:
        """Give those that were not given yet."""
        self._write()
        written, self._written = self._written, []
        return b"".join(written)

    def _write(self) -> None:
        self._written.append(self._trace.SerializeToString(deterministic=True))
        self._trace = _trace_class()()


class _Host:
    """Writes one host's share."""

    def __init__(
        self, packets: _Packets, snapshot: snapshot_pb2.Snapshot, machine: int, uuids: Iterator[int], ahead_ns: int
    ) -> None:
        self._packets = packets
        self._snapshot = snapshot
        self._machine = machine
        self._uuids = uuids
        meta = snapshot.meta
        self._first_ns = unix_ns(meta.started_at) - ahead_ns
        window_ns = length_ns(meta.window_ms)
        self._second_ns = self._first_ns + window_ns if window_ns else None
        self._last_ns = self._first_ns + max(length_ns(meta.duration_ms), window_ns + _LEAST_NS)
        self._known = {process.pid: process for process in snapshot.processes}
        self._processes: dict[int, int] = {}
        self._host_track = 0

    def write(self) -> None:
        clocks = self._packet(self._first_ns).clock_snapshot
        for clock in (_REALTIME, _BOOTTIME):
            clocks.clocks.add(clock_id=clock, timestamp=self._first_ns)
        self._host_track = self._track(f"{self._snapshot.meta.host}: verdict", 0)
        self._verdict()
        for process in self._snapshot.processes:
            self._process(process.pid)
        self._threads()
        self._requests()
        for series in self._snapshot.history.series:
            self._counter(series)

    def _verdict(self) -> None:
        for verdict in standing(self._snapshot):
            values: dict[str, _Value] = {
                "summary": verdict.summary,
                "hop": verdict.hop,
                "confidence": enum_name(verdict, "confidence"),
                "holder pids": " ".join(map(str, verdict.holder_pids)),
                "snapshot": self._snapshot.meta.snapshot_id,
            }
            self._event(_INSTANT, self._host_track, self._first_ns, enum_name(verdict, "code"), values)

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
        values: dict[str, _Value] = {"state": thread.state, "wchan": thread.wchan, "syscall": thread.syscall}
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
        values: Mapping[str, _Value],
        frames: Sequence[stacks.Frame],
    ) -> None:
        begin_ns, end_ns = time_ns
        self._event(_BEGIN, track, begin_ns, name, values)
        for frame in frames:
            where = f"{frame.file}:{frame.line}" if frame.line else frame.file
            self._event(_BEGIN, track, begin_ns, frame.name, {"at": where} if where else {})
        for _ in range(len(frames) + 1):
            self._event(_END, track, end_ns)

    def _requests(self) -> None:
        requests = self._snapshot.requests
        flows: dict[int, list[int]] = {}
        for index, request in enumerate(requests):
            for further in _references(request, len(requests)):
                flow = next(self._uuids)
                flows.setdefault(index, []).append(flow)
                flows.setdefault(further, []).append(flow)
        for index, request in enumerate(requests):
            # Those of one name and parent are drawn together.
            parent = self._process(request.pid) if request.HasField("pid") else self._host_track
            track = self._track("requests", parent)
            begin_ns = max(self._first_ns - length_ns(request.age_ms), 0)
            name = " ".join(filter(None, (request.method, request.path))) or "request"
            # Without an end: it is in flight.
            self._event(_BEGIN, track, begin_ns, name, _of_request(request), flows.get(index, ()))

    def _counter(self, series: host_pb2.Series) -> None:
        parent = self._process(series.pid) if series.HasField("pid") else 0
        names = [series.kind, series.subject]
        if series.HasField("peer_pid"):
            names.append(f"for {self._name(series.peer_pid)}")
        track = self._track(" ".join(filter(None, names)), parent, unit=_UNITS.get(series.kind, ""))
        step_ns = length_ns(self._snapshot.history.interval_ms)
        last = len(series.values) - 1
        before = math.nan
        for index, value in enumerate(series.values):
            # A counter keeps its value until the next one.
            if math.isnan(value) or (value == before and index != last):
                continue
            before = value
            event = self._event(_COUNTER, track, max(self._first_ns - (last - index) * step_ns, 0))
            event.double_counter_value = value

    def _process(self, pid: int) -> int:
        if pid not in self._processes:
            self._processes[pid] = uuid = next(self._uuids)
            known = self._known.get(pid)
            descriptor = self._packet().track_descriptor
            descriptor.uuid = uuid
            descriptor.process.pid = pid
            descriptor.process.process_name = clean(self._name(pid))
            if known is not None:
                descriptor.process.process_labels.append(enum_name(known, "role").lower().replace("_", "-"))
            if self._machine:
                descriptor.process.process_labels.append(clean(self._snapshot.meta.host))
        return self._processes[pid]

    def _name(self, pid: int) -> str:
        known = self._known.get(pid)
        return (known.title or known.comm) if known is not None else f"pid {pid}"

    def _thread_track(self, pid: int, tid: int, name: str) -> int:
        if not tid:
            return self._track(f"thread {name}", self._process(pid))
        self._process(pid)
        descriptor = self._packet().track_descriptor
        descriptor.uuid = uuid = next(self._uuids)
        descriptor.thread.pid, descriptor.thread.tid, descriptor.thread.thread_name = pid, tid, clean(name)
        return uuid

    def _track(self, name: str, parent: int, *, unit: str | None = None) -> int:
        descriptor = self._packet().track_descriptor
        descriptor.uuid = uuid = next(self._uuids)
        descriptor.name = clean(name)
        if parent:
            descriptor.parent_uuid = parent
        if unit is not None:
            descriptor.counter.unit_name = unit
        return uuid

    def _event(
        self,
        kind: int,
        track: int,
        at_ns: int,
        name: str = "",
        values: Mapping[str, _Value] | None = None,
        flows: Sequence[int] = (),
    ) -> Any:
        event = self._packet(at_ns).track_event
        event.type, event.track_uuid = kind, track
        if name:
            event.name = clean(name)
        for key, value in (values or {}).items():
            if value == "":
                continue
            if isinstance(value, str):
                event.debug_annotations.add(name=key, string_value=clean(value))
            elif isinstance(value, bool):
                event.debug_annotations.add(name=key, bool_value=value)
            else:
                event.debug_annotations.add(name=key, double_value=value)
        event.flow_ids.extend(flows)
        return event

    def _packet(self, at_ns: int | None = None) -> Any:
        packet = self._packets.add(self._machine + 1)
        if at_ns is not None:
            packet.timestamp = at_ns
        if self._machine:
            packet.machine_id = self._machine
        return packet


def _of_request(request: request_pb2.Request) -> dict[str, _Value]:
    values: dict[str, _Value] = {
        "request id": request.request_id,
        "age ms": request.age_ms,
        "at least": request.at_least,
        "side": enum_name(request, "side").lower(),
        "peer": request.peer_address,
        "streaming": request.streaming,
    }
    for field in ("in_bytes", "out_bytes", "last_in_age_ms", "last_out_age_ms"):
        if request.HasField(field):
            values[field.replace("_", " ")] = getattr(request, field)
    return values


def _references(request: request_pb2.Request, count: int) -> Iterator[int]:
    """Give the positions of the same request one hop further, among `count`."""
    for reference in request.upstream:
        found = _REFERENCE.fullmatch(reference)
        if found and int(found[1]) < count:
            yield int(found[1])


@functools.cache
def _trace_class() -> Any:
    return message_class(_PACKAGE, "proto2", _MESSAGES, "Trace")
