"""Snapshots that say what no agent does: a value in every field of its kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from freezeframe.judge import wire
from freezeframe.v1 import snapshot_pb2
from tests.support.filled import filled_snapshot

# By kind of field.
NUMBERS: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.CPPTYPE_DOUBLE: (float("nan"), float("inf"), -float("inf"), 1e300, -1e300, 1e-300, 0.0),
    FieldDescriptor.CPPTYPE_UINT32: (2**32 - 1, 0),
    FieldDescriptor.CPPTYPE_ENUM: (9999,),
}
TEXTS = (
    "", "\x1b[2J\n\r\0", "\u202e\u2066x", "a" * 100_000, ";|`*_[](<b>&]]>", "\ud7ff\ufffe\U0010ffff", "..", "/", "-o",
    "requests[0]", f"requests[{'9' * 5000}]", "requests[\u00b2]", "\u0661",
)  # fmt: skip
MOMENTS = (
    "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "Z", "2026-01-02",
)  # fmt: skip


def full() -> snapshot_pb2.Snapshot:
    message: snapshot_pb2.Snapshot = wire.to_message(filled_snapshot())
    return message


def each_message(message: Message) -> Iterator[Message]:
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if wire.is_repeated(field) else (value,):
                yield from each_message(inner)
    yield message


def with_all(snapshot: snapshot_pb2.Snapshot, values: dict[int, Any]) -> snapshot_pb2.Snapshot:
    """Put a value into every field of its kind; a repeated one keeps its length."""
    for message in list(each_message(snapshot)):
        for field in message.DESCRIPTOR.fields:
            if field.cpp_type not in values or field.name == "schema":
                continue
            if wire.is_repeated(field):
                items = getattr(message, field.name)
                items[:] = [values[field.cpp_type]] * len(items)
            else:
                setattr(message, field.name, values[field.cpp_type])
    return snapshot
