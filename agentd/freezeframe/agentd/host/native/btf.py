"""What the kernel's BTF says of the few things that the task iterator needs: Documentation/bpf/btf.rst."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PATH = "/sys/kernel/btf/vmlinux"
_MAGIC = 0xEB9F
_STRUCT = 4
_TYPEDEF = 8
_FUNC = 12
_HEADER = struct.Struct("<HBBIIIII")
_TYPE = struct.Struct("<III")
# Bytes after the type header: fixed ones, and those per member, by kind.
_FIXED = {1: 4, 3: 12, 14: 4, 17: 4}
_PER_MEMBER = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}


class BtfError(Exception):
    """The kernel's type information does not hold what is asked for, or is not there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFacts:
    """What is needed to attach to a task iterator and read a task."""

    # Type id of the iterator's function.
    function: int
    # Bytes from the start of struct task_struct, by field.
    offsets: Mapping[str, int]


# "state" became "__state" in 5.14; "on_cpu" exists where CONFIG_SMP does.
FIELDS = ("pid", "tgid", "__state", "state", "on_cpu", "nvcsw", "nivcsw")


def typedef_id(name: str, path: str = PATH) -> int:
    """Give the id of a typedef: 10 to 30 ms. Raises BtfError."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        return _typedef_id(data, name)
    except OSError as error:
        raise BtfError(f"reading {path}: {error.strerror}") from error
    except (struct.error, ValueError) as error:
        raise BtfError(f"reading {path}: {error}") from error


def _typedef_id(data: bytes, name: str) -> int:
    magic, _, _, header, types_at, types_bytes, strings_at, _ = _HEADER.unpack_from(data, 0)
    at = data.find(b"\0" + name.encode() + b"\0", header + strings_at)
    if magic != _MAGIC or at < 0:
        raise ValueError(f"no typedef {name}")
    wanted = at + 1 - header - strings_at
    unpack = _TYPE.unpack_from
    at, end, number = header + types_at, header + types_at + types_bytes, 0
    while at < end:
        number += 1
        called, info, _ = unpack(data, at)
        kind, count = info >> 24 & 31, info & 0xFFFF
        if kind == _TYPEDEF and called == wanted:
            return number
        at += _TYPE.size + _FIXED.get(kind, 0) + _PER_MEMBER.get(kind, 0) * count
    raise ValueError(f"no typedef {name}")


def read(path: str = PATH) -> TaskFacts:
    """Read the kernel's BTF: 20 to 40 ms. Raises BtfError."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise BtfError(f"reading {path}: {error.strerror}") from error
    return parse(data)


def parse(data: bytes, function: str = "bpf_iter_task", fields: Sequence[str] = FIELDS) -> TaskFacts:
    """Find the function's type id and the fields of task_struct. Raises BtfError."""
    try:
        return _parse(data, function, fields)
    except (struct.error, ValueError) as error:
        raise BtfError(f"reading BTF of {len(data)} bytes: {error}") from error


def _parse(data: bytes, function: str, fields: Sequence[str]) -> TaskFacts:
    magic, _, _, header, types_at, types_bytes, strings_at, _ = _HEADER.unpack_from(data, 0)
    if magic != _MAGIC:
        raise ValueError("not little-endian BTF")
    strings = header + strings_at

    def name(text: str) -> int:
        # Once as text, then integers are compared: there are 100,000 types.
        at = data.find(b"\0" + text.encode() + b"\0", strings)
        return at + 1 - strings if at >= 0 else -1

    function_name, task_name = name(function), name("task_struct")
    members = {name(field): field for field in fields if name(field) >= 0}
    unpack = _TYPE.unpack_from
    at, end, number = header + types_at, header + types_at + types_bytes, 0
    function_id = 0
    offsets: dict[str, int] = {}
    while at < end and not (function_id and offsets):
        number += 1
        called, info, _ = unpack(data, at)
        kind, count = info >> 24 & 31, info & 0xFFFF
        if kind == _FUNC and called == function_name:
            function_id = number
        elif kind == _STRUCT and called == task_name:
            offsets = _offsets(data, at + _TYPE.size, count, bool(info >> 31), members)
        at += _TYPE.size + _FIXED.get(kind, 0) + _PER_MEMBER.get(kind, 0) * count
    if not function_id:
        raise ValueError(f"no function {function}: the kernel has no task iterator (5.8)")
    if not {"pid", "tgid", "nvcsw", "nivcsw"} <= set(offsets):
        raise ValueError("no struct task_struct as it is known")
    return TaskFacts(function=function_id, offsets=offsets)


def _offsets(data: bytes, at: int, count: int, bitfields: bool, members: Mapping[int, str]) -> dict[str, int]:
    found = {}
    for index in range(count):
        called, _, bits = _TYPE.unpack_from(data, at + _TYPE.size * index)
        if called in members:
            found[members[called]] = (bits & 0xFFFFFF if bitfields else bits) // 8
    return found
