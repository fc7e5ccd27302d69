"""pprof's protobuf, gzipped (github.com/google/pprof, proto/profile.proto): for `go tool pprof`, Pyroscope, Grafana.

The message is described here by the numbers of that file, as far as it is written: names of fields are not on the wire.
"""

from __future__ import annotations

import functools
import gzip
from typing import Any

from freezeframe.client.export.described import INT64, MANY, MESSAGE, ONE, STRING, UINT64, Field, message_class
from freezeframe.client.export.stacks import Frame, Stacks
from freezeframe.client.render.guard import clean

_PACKAGE = "freezeframe.pprof"
_MOST = 2**63 - 1
_MESSAGES: dict[str, tuple[Field, ...]] = {
    "ValueType": (("type", 1, INT64, ONE, ""), ("unit", 2, INT64, ONE, "")),
    "Label": (("key", 1, INT64, ONE, ""), ("str", 2, INT64, ONE, ""), ("num", 3, INT64, ONE, "")),
    "Sample": (
        ("location_id", 1, UINT64, MANY, ""),
        ("value", 2, INT64, MANY, ""),
        ("label", 3, MESSAGE, MANY, "Label"),
    ),
    "Line": (("function_id", 1, UINT64, ONE, ""), ("line", 2, INT64, ONE, "")),
    "Location": (("id", 1, UINT64, ONE, ""), ("line", 4, MESSAGE, MANY, "Line")),
    "Function": (
        ("id", 1, UINT64, ONE, ""),
        ("name", 2, INT64, ONE, ""),
        ("system_name", 3, INT64, ONE, ""),
        ("filename", 4, INT64, ONE, ""),
    ),
    "Profile": (
        ("sample_type", 1, MESSAGE, MANY, "ValueType"),
        ("sample", 2, MESSAGE, MANY, "Sample"),
        ("location", 4, MESSAGE, MANY, "Location"),
        ("function", 5, MESSAGE, MANY, "Function"),
        ("string_table", 6, STRING, MANY, ""),
        ("duration_nanos", 10, INT64, ONE, ""),
        ("period_type", 11, MESSAGE, ONE, "ValueType"),
        ("period", 12, INT64, ONE, ""),
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
        spent = (min(stack.count * stacks.period_ns, _MOST),) if stacks.period_ns else ()
        sample.value.extend((stack.count, *spent))
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
    return message_class(_PACKAGE, "proto3", _MESSAGES, "Profile")
