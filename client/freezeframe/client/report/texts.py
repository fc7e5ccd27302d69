"""Every text of a message, and a way to put another in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

# Fields of ids, addresses and symbols: disorder alone makes no secret of them.
_ORDERLY = frozenset({
    "snapshot_id", "boot_id", "request_id", "engine_request_id", "uuid", "bus_id", "address", "holder_address",
    "awaits_address", "awaited_by", "container", "local", "remote", "client_address", "server_address", "peer_address",
    "ref", "request_ref", "upstream", "function", "module", "kernel_stack", "kernel_frames", "wchan", "syscall",
    "syscall_arguments", "frame", "frame_after", "cgroup", "unit", "pod",
})  # fmt: skip
# Lines, whether they are orderly, the name before them, and what puts others in their place.
Texts = tuple[list[str], bool, str, Callable[[list[str]], None]]


def texts_of(message: Message) -> Iterator[Texts]:
    """Give every text of `message`."""
    for descriptor, value in message.ListFields():
        name = descriptor.name
        orderly = name in _ORDERLY or (message.DESCRIPTOR.name == "Metric" and name == "name")
        entry = descriptor.message_type
        if entry is not None and entry.GetOptions().map_entry:
            if entry.fields_by_name["value"].type == FieldDescriptor.TYPE_STRING:
                for each in tuple(value):
                    yield [value[each]], each in _ORDERLY or each.endswith("id"), each, _put_in_map(value, each)
        elif descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            each_of = (value,) if isinstance(value, Message) else tuple(value)
            if len(each_of) > 1 and hasattr(each_of[0], "text"):
                # Lines of a log, one record each.
                yield [each.text for each in each_of], orderly, name, _put_in_each(each_of)
            for each in each_of:
                yield from texts_of(each)
        elif descriptor.type == FieldDescriptor.TYPE_STRING:
            if not isinstance(value, str):
                yield list(value), orderly, name, _put_in_list(value)
            else:
                yield [value], orderly, name, _put_in_field(message, name)


def _put_in_map(values: dict[str, str], key: str) -> Callable[[list[str]], None]:
    def put(lines: list[str]) -> None:
        values[key] = lines[0]

    return put


def _put_in_list(values: list[str]) -> Callable[[list[str]], None]:
    def put(lines: list[str]) -> None:
        values[:] = lines

    return put


def _put_in_field(message: Message, name: str) -> Callable[[list[str]], None]:
    def put(lines: list[str]) -> None:
        setattr(message, name, lines[0])

    return put


def _put_in_each(records: Sequence[Any]) -> Callable[[list[str]], None]:
    def put(lines: list[str]) -> None:
        for record, line in zip(records, lines, strict=True):
            record.text = line

    return put
