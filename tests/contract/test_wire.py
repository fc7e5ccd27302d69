from __future__ import annotations

import typing

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from freezeframe.judge import model, wire
from freezeframe.judge.model import Metric, Outcome, Process, Snapshot, Socket, Thread, Verdict
from freezeframe.v1 import snapshot_pb2
from tests.support.filled import filled

SCALARS = {
    FieldDescriptor.TYPE_STRING: str,
    FieldDescriptor.TYPE_DOUBLE: float,
    FieldDescriptor.TYPE_UINT32: int,
    FieldDescriptor.TYPE_BOOL: bool,
    FieldDescriptor.TYPE_BYTES: bytes,
}


def reachable(descriptor: Descriptor, seen: dict[str, Descriptor]) -> dict[str, Descriptor]:
    if descriptor.name not in seen and not descriptor.GetOptions().map_entry:
        seen[descriptor.name] = descriptor
        for field in descriptor.fields:
            if field.message_type is not None:
                reachable(field.message_type, seen)
    return seen


MESSAGES = reachable(snapshot_pb2.Snapshot.DESCRIPTOR, {})


def expected_type(field: FieldDescriptor) -> object:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return tuple[tuple[str, str], ...]
    if field.message_type is not None:
        item: typing.Any = getattr(model, field.message_type.name)
    elif field.enum_type is not None:
        item = getattr(getattr(model, field.enum_type.containing_type.name), field.enum_type.name)
    else:
        item = SCALARS[field.type]
    if wire.is_repeated(field):
        return tuple[item, ...]
    return item | None if field.has_presence else item


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_each_dataclass_has_the_fields_of_its_message(name: str) -> None:
    hints = typing.get_type_hints(getattr(model, name))
    assert hints == {field.name: expected_type(field) for field in MESSAGES[name].fields}


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_each_enum_has_the_values_of_its_message(name: str) -> None:
    for enum in MESSAGES[name].enum_types:
        mine = getattr(getattr(model, name), enum.name)
        assert {value.name: value.number for value in enum.values} == {value.name: value.value for value in mine}


def test_a_full_snapshot_survives_the_wire() -> None:
    snapshot = filled(Snapshot)
    assert wire.from_bytes(wire.to_bytes(snapshot), Snapshot) == snapshot


def test_an_empty_snapshot_survives_the_wire() -> None:
    assert wire.to_bytes(Snapshot()) == b""
    assert wire.from_bytes(b"", Snapshot) == Snapshot()


def test_zero_and_unknown_stay_apart() -> None:
    for value in (None, 0.0):
        socket = Socket(last_in_age_ms=value)
        assert wire.from_bytes(wire.to_bytes(socket), Socket).last_in_age_ms == value


def test_an_unknown_enum_value_of_a_newer_agent_is_unspecified() -> None:
    message = typing.cast("typing.Any", wire.to_message(Verdict(summary="x")))
    message.code = 9999
    assert wire.from_bytes(message.SerializeToString(), Verdict) == Verdict(summary="x")


def test_foreign_bytes_are_an_error_that_says_what_was_read() -> None:
    with pytest.raises(wire.WireError, match="decoding a Snapshot of 3 bytes"):
        wire.from_bytes(b"\xff\xff\xff", Snapshot)


def test_a_message_of_another_kind_is_refused() -> None:
    with pytest.raises(wire.WireError, match="decoding a Metric: got a Process"):
        wire.from_message(wire.to_message(Process(threads=(Thread(tid=1),))), Metric)


def test_parts_concatenate() -> None:
    one = Snapshot(processes=(Process(pid=1),))
    two = Snapshot(processes=(Process(pid=2),), outcomes=(Outcome(collector="x"),))
    both = wire.from_bytes(wire.to_bytes(one) + wire.to_bytes(two), Snapshot)
    assert [process.pid for process in both.processes] == [1, 2]
    assert both.outcomes == (Outcome(collector="x"),)
