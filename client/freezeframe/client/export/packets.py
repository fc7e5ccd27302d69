"""Packets of Perfetto's trace: its messages as far as they are written here, and the machines that they are of."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
from freezeframe.client.render.guard import clean

# TrackEvent.Type.
BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4
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
# Packets.
_AT_ONCE = 10_000

Value = str | float | bool


class Packets:
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


class Machine:
    """Writes tracks and events of one machine; processes, and flows, of different ones never meet."""

    def __init__(self, packets: Packets, number: int, uuids: Iterator[int]) -> None:
        self._packets = packets
        self._number = number
        self._uuids = uuids

    def uuid(self) -> int:
        """Give one that no track has, on any machine."""
        return next(self._uuids)

    def clocks(self, at_ns: int) -> None:
        """Say that its clocks are one."""
        clocks = self.packet(at_ns).clock_snapshot
        for clock in (_REALTIME, _BOOTTIME):
            clocks.clocks.add(clock_id=clock, timestamp=at_ns)

    def track(self, name: str, parent: int, *, unit: str | None = None) -> int:
        """Begin a track, of a counter where there is a `unit`, and give its uuid."""
        descriptor = self.packet().track_descriptor
        descriptor.uuid = uuid = self.uuid()
        descriptor.name = clean(name)
        if parent:
            descriptor.parent_uuid = parent
        if unit is not None:
            descriptor.counter.unit_name = unit
        return uuid

    def event(
        self,
        kind: int,
        track: int,
        at_ns: int,
        name: str = "",
        values: Mapping[str, Value] | None = None,
        flows: Sequence[int] = (),
    ) -> Any:
        """Add an event to a track; `flows` lead through it."""
        event = self.packet(at_ns).track_event
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

    def packet(self, at_ns: int | None = None) -> Any:
        """Give a new packet, to be filled before the next one is asked for."""
        packet = self._packets.add(self._number + 1)
        if at_ns is not None:
            packet.timestamp = at_ns
        if self._number:
            packet.machine_id = self._number
        return packet


@functools.cache
def _trace_class() -> Any:
    return message_class(_PACKAGE, "proto2", _MESSAGES, "Trace")
