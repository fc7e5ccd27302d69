"""Messages of other projects' protobuf, described by the numbers of their fields as far as they are written here.

Names of fields are not on the wire. Their own generated code would tie the client to one range of protobuf's releases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Types and labels as descriptor.proto numbers them.
DOUBLE, INT64, UINT64, INT32, FIXED64, BOOL, STRING, MESSAGE, UINT32 = 1, 3, 4, 5, 6, 8, 9, 11, 13
ONE, MANY = 1, 3

# Name, number, type, label, message of the field ("" when it is none).
Field = tuple[str, int, int, int, str]


def message_class(package: str, syntax: str, messages: Mapping[str, Sequence[Field]], name: str) -> Any:
    """Give the class of the message `name` among `messages`; `syntax` is "proto2" or "proto3", as theirs is."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax=syntax)
    for each, fields in messages.items():
        message = file.message_type.add(name=each)
        for field, number, kind, label, of in fields:
            described = message.field.add(name=field, number=number)
            described.type, described.label = kind, label  # type: ignore[assignment]
            if of:
                described.type_name = f".{package}.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
