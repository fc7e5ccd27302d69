"""pprof's protobuf, gzipped (github.com/google/pprof, proto/profile.proto): for `go tool pprof`, Pyroscope, Grafana.

The message is described here by the numbers of that file, as far as it is written: names of fields are not on the wire.
"""

from __future__ import annotations

import functools
import gzip
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from freezeframe.client.export.stacks import Frame, Stacks
from freezeframe.client.render.guard import clean

_INT64, _UINT64, _STRING, _MESSAGE = 3, 4, 9, 11
_ONE, _MANY = 1, 3
_PACKAGE = "freezeframe.pprof"
# Message -> name, number, type, label, message of the field.
_MESSAGES: dict[str, tuple[tuple[str, int, int, int, str], ...]] = {
    "ValueType": (("type", 1, _INT64, _ONE, ""), ("unit", 2, _INT64, _ONE, "")),
    "Label": (("key", 1, _INT64, _ONE, ""), ("str", 2, _INT64, _ONE, ""), ("num", 3, _INT64, _ONE, "")),
    "Sample": (
        ("location_id", 1, _UINT64, _MANY, ""),
        ("value", 2, _INT64, _MANY, ""),
        ("label", 3, _MESSAGE, _MANY, "Label"),
    ),
    "Line": (("function_id", 1, _UINT64, _ONE, ""), ("line", 2, _INT64, _ONE, "")),
    "Location": (("id", 1, _UINT64, _ONE, ""), ("line", 4, _MESSAGE, _MANY, "Line")),
    "Function": (
        ("id", 1, _UINT64, _ONE, ""),
        ("name", 2, _INT64, _ONE, ""),
        ("system_name", 3, _INT64, _ONE, ""),
        ("filename", 4, _INT64, _ONE, ""),
    ),
    "Profile": (
        ("sample_type", 1, _MESSAGE, _MANY, "ValueType"),
        ("sample", 2, _MESSAGE, _MANY, "Sample"),
        ("location", 4, _MESSAGE, _MANY, "Location"),
        ("function", 5, _MESSAGE, _MANY, "Function"),
        ("string_table", 6, _STRING, _MANY, ""),
        ("duration_nanos", 10, _INT64, _ONE, ""),
        ("period_type", 11, _MESSAGE, _ONE, "ValueType"),
        ("period", 12, _INT64, _ONE, ""),
    ),
}


def render(stacks: Stacks) -> bytes:
    """Give the file."""
    strings: dict[str, int] = {"": 0}

    def text(value: str) -> int:
        return strings.setdefault(clean(value), len(strings))

    profile = _profile_class()()
    if stacks.period_ns:
        profile.sample_type.add(type=text("samples"), unit=text("count"))
        profile.sample_type.add(type=text("cpu"), unit=text("nanoseconds"))
        profile.period_type.type, profile.period_type.unit = text("cpu"), text("nanoseconds")
        profile.period, profile.duration_nanos = stacks.period_ns, stacks.duration_ns
    else:
        profile.sample_type.add(type=text("stacks"), unit=text("count"))
    functions: dict[tuple[str, str], int] = {}
    locations: dict[Frame, int] = {}
    for stack in stacks.stacks:
        sample = profile.sample.add()
        for frame in reversed(stack.frames):
            if frame not in locations:
                key = (frame.name, frame.file)
                if key not in functions:
                    functions[key] = len(functions) + 1
                    name = text(frame.name)
                    profile.function.add(id=functions[key], name=name, system_name=name, filename=text(frame.file))
                locations[frame] = len(locations) + 1
                location = profile.location.add(id=locations[frame])
                location.line.add(function_id=functions[key], line=frame.line)
            sample.location_id.append(locations[frame])
        sample.value.extend([stack.count, stack.count * stacks.period_ns] if stacks.period_ns else [stack.count])
        sample.label.add(key=text("process"), str=text(stack.process))
        sample.label.add(key=text("thread"), str=text(stack.owner))
        sample.label.add(key=text("pid"), num=stack.pid)
        if stack.tid:
            sample.label.add(key=text("tid"), num=stack.tid)
    profile.string_table.extend(strings)
    # Without a time, so that the same snapshot gives the same bytes.
    return gzip.compress(profile.SerializeToString(deterministic=True), mtime=0)


@functools.cache
def _profile_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="freezeframe/pprof.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label, of in fields:
            described = message.field.add(name=field, number=number)
            described.type, described.label = kind, label  # type: ignore[assignment]
            if of:
                described.type_name = f".{_PACKAGE}.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Profile"))
