"""Finds the record behind a reference such as "processes[3].threads[0]" and says it in one line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from freezeframe.client.render import units
from freezeframe.client.render.values import enum_name
from freezeframe.v1 import snapshot_pb2, stack_pb2

_STEP = re.compile(r"([a-z_]+)(?:\[(\d{1,9})\])?", re.ASCII)
_SHOWN_OF_A_LIST = 8
_SHOWN_REFERENCES = 2


def short(references: str) -> str:
    """Keep a line readable: the first reference, and how many more there are."""
    each = references.split()
    return references if len(each) <= _SHOWN_REFERENCES else f"{each[0]} and {len(each) - 1} more"


# Name of a host, field -> a snapshot of it that has the field.
Hosts = Callable[[str, str], snapshot_pb2.Snapshot | None]


def no_hosts(_name: str, _field: str) -> None:
    """Every reference leads into the snapshot itself."""


def resolve(references: str, snapshot: snapshot_pb2.Snapshot, hosts: Hosts = no_hosts) -> tuple[str, ...]:
    """Say each record of `references` (separated by spaces); what is not in this snapshot is said to be missing.

    Of several hosts, by name, one begins with its own: "gpu-07/sockets[12]".
    """
    lines: list[str] = []
    for reference in references.split():
        host, _, place = reference.rpartition("/")
        at = hosts(host, place.partition("[")[0].partition(".")[0]) if host else None
        found = _find(place, snapshot if at is None else at)
        if found is None:
            lines.append(f"{reference}: not in this snapshot")
        else:
            lines += (f"{reference}: {_sentence(found)}", *_stack(found))
    return tuple(lines)


def _find(reference: str, snapshot: Message) -> Any:
    value: Any = snapshot
    for step in reference.split("."):
        match = _STEP.fullmatch(step)
        if match is None or not isinstance(value, Message) or match[1] not in value.DESCRIPTOR.fields_by_name:
            return None
        field = match[1]
        if match[2] is None and value.DESCRIPTOR.fields_by_name[field].has_presence and not value.HasField(field):
            return None
        value = getattr(value, field)
        if match[2] is not None:
            if isinstance(value, (Message, str, bytes)) or not hasattr(value, "__len__") or int(match[2]) >= len(value):
                return None
            value = value[int(match[2])]
    return value


def _sentence(value: Any) -> str:
    if not isinstance(value, Message):
        return str(value)
    said = []
    for field, item in value.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            said.append(f"{field.name}={{{', '.join(f'{key}={item[key]}' for key in sorted(item))}}}")
        elif isinstance(item, Message):
            said.append(f"{field.name}={{{_sentence(item)}}}")
        elif hasattr(item, "__len__") and not isinstance(item, (str, bytes)):
            said.append(_list(field, item))
        elif field.enum_type is not None:
            said.append(f"{field.name}={enum_name(value, field.name)}")
        else:
            said.append(f"{field.name}={_scalar(field.name, item)}")
    return ", ".join(said) or "empty"


def _list(field: Any, items: Any) -> str:
    if field.message_type is not None:
        return units.count(len(items), field.name.removesuffix("s"))
    shown = " ".join(str(each) for each in items[:_SHOWN_OF_A_LIST])
    more = f" and {len(items) - _SHOWN_OF_A_LIST} more" if len(items) > _SHOWN_OF_A_LIST else ""
    return f"{field.name}={shown}{more}"


def _scalar(name: str, value: Any) -> str:
    if isinstance(value, float):
        if name.endswith(("_ms", "_ms_delta")):
            return units.age(value)
        return str(int(value)) if value.is_integer() else f"{value:.6g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _stack(value: Any) -> tuple[str, ...]:
    frames = getattr(value, "frames", ())
    return tuple(
        f"at {frame.function} ({frame.file}:{frame.line})" for frame in frames if isinstance(frame, stack_pb2.Frame)
    )
