"""Model <-> protobuf, field by field, driven by the descriptors of freezeframe.v1.

A dataclass of `judge.model` and the message of the same name have the same fields, which a contract test checks; so
nothing is spelled here. What a newer writer knows and this version does not is dropped, an unknown enum value becomes
UNSPECIFIED, and a field that an older writer did not have keeps its default.
"""

from __future__ import annotations

import sys
from enum import Enum
from functools import cache
from typing import Any, TypeVar, cast

from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from freezeframe.judge import model
from freezeframe.v1 import snapshot_pb2

T = TypeVar("T")


class WireError(ValueError):
    """Bytes that are not the message they should be."""


def to_message(value: object) -> Message:
    """Turn a dataclass of the model into its message."""
    return _encode(value, _descriptor(type(value).__name__))


def from_message(message: Message, kind: type[T]) -> T:
    """Turn a message into `kind`, the dataclass of the same name."""
    if message.DESCRIPTOR.name != kind.__name__:
        raise WireError(f"decoding a {kind.__name__}: got a {message.DESCRIPTOR.name}")
    return cast("T", _decode(message))


def to_bytes(value: object) -> bytes:
    """Serialise a dataclass of the model."""
    return to_message(value).SerializeToString()


def from_bytes(data: bytes, kind: type[T]) -> T:
    """Parse the bytes of a message into `kind`. Raises WireError."""
    message = _message_class(_descriptor(kind.__name__))()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise WireError(f"decoding a {kind.__name__} of {len(data)} bytes: {error}") from error
    return from_message(message, kind)


_PACKAGE = snapshot_pb2.DESCRIPTOR.package


@cache
def _descriptor(name: str) -> Descriptor:
    return descriptor_pool.Default().FindMessageTypeByName(f"{_PACKAGE}.{name}")


@cache
def _message_class(descriptor: Descriptor) -> type[Message]:
    return message_factory.GetMessageClass(descriptor)


def is_repeated(field: FieldDescriptor) -> bool:
    """Tell a repeated field, with every supported protobuf."""
    # Newer protobuf warns about `label`, older ones lack `is_repeated`.
    probe = getattr(field, "is_repeated", None)
    return bool(probe) if probe is not None else getattr(field, "label") == FieldDescriptor.LABEL_REPEATED  # noqa: B009


class _Field:
    """How one field is carried; made once per field."""

    __slots__ = ("enum", "is_map", "message", "name", "presence", "repeated")

    def __init__(self, field: FieldDescriptor) -> None:
        self.name = field.name
        self.repeated = is_repeated(field)
        self.message: Descriptor | None = field.message_type
        self.is_map = bool(self.message is not None and self.message.GetOptions().map_entry)
        self.presence = field.has_presence
        self.enum: type[Enum] | None = None
        if field.enum_type is not None:
            owner = cast("Descriptor", field.enum_type.containing_type)
            self.enum = getattr(getattr(model, owner.name), field.enum_type.name)


@cache
def _plan(descriptor: Descriptor) -> tuple[_Field, ...]:
    return tuple(_Field(field) for field in descriptor.fields)


def _encode(value: Any, descriptor: Descriptor) -> Message:
    message = _message_class(descriptor)()
    for field in _plan(descriptor):
        item = getattr(value, field.name)
        if item is None or item == ():
            continue
        if field.is_map:
            getattr(message, field.name).update(item)
        elif field.message is not None and field.repeated:
            getattr(message, field.name).extend(_encode(each, field.message) for each in item)
        elif field.message is not None:
            getattr(message, field.name).CopyFrom(_encode(item, field.message))
        elif field.repeated:
            getattr(message, field.name).extend(item)
        else:
            setattr(message, field.name, item.value if field.enum is not None else item)
    return message


def _decode(message: Message) -> object:
    descriptor = message.DESCRIPTOR
    values: dict[str, Any] = {}
    for field in _plan(descriptor):
        if field.presence and not message.HasField(field.name):
            continue
        item = getattr(message, field.name)
        if field.is_map:
            values[field.name] = tuple(sorted((sys.intern(key), sys.intern(each)) for key, each in item.items()))
        elif field.message is not None:
            values[field.name] = tuple(_decode(each) for each in item) if field.repeated else _decode(item)
        elif field.repeated:
            values[field.name] = tuple(item)
        elif field.enum is not None:
            values[field.name] = _enum(field.enum, item)
        elif type(item) is str:
            # Thousands of records share their names: of functions, states, gauges.
            values[field.name] = sys.intern(item)
        else:
            values[field.name] = item
    return getattr(model, descriptor.name)(**values)


def _enum(kind: type[Enum], number: int) -> Enum:
    try:
        return kind(number)
    except ValueError:
        return kind(0)
