"""Reading a wire message: enum names, presence, optional numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from google.protobuf.message import Message

from freezeframe.client.render import units
from freezeframe.v1 import process_pb2, verdict_pb2

# What stands in a cell where the agent says nothing.
NOTHING = "-"


def enum_name(message: Message, field: str) -> str:
    """Name the value of an enum field; one of a newer agent shows as its number."""
    enum = message.DESCRIPTOR.fields_by_name[field].enum_type
    number = getattr(message, field)
    if enum is None or (value := enum.values_by_number.get(number)) is None:
        return str(number)
    return str(value.name)


def optional(message: Message, field: str, say: Callable[[float], str] = units.number) -> str:
    """Say a field with presence, NOTHING where it is absent."""
    return say(getattr(message, field)) if message.HasField(field) else NOTHING


def role(process: process_pb2.Process) -> str:
    """Say the part a process has in serving: "engine-http (prefill)"."""
    name = enum_name(process, "role").lower().replace("_", "-")
    return f"{name} ({process.disaggregation})" if process.disaggregation else name


def pid(message: Message, field: str = "pid") -> str:
    """Say a pid that may be absent."""
    return str(getattr(message, field)) if message.HasField(field) else NOTHING


def holders(verdict: verdict_pb2.Verdict) -> str:
    """Say who holds: "pid 7", or of several hosts "pid 7 on gpu-07, pids 8, 9 on gpu-08"; an address without a pid."""
    return placed(verdict.holder_pids, verdict.holder_hosts) or verdict.holder_address


def placed(numbers: Sequence[int], hosts: Sequence[str]) -> str:
    """Say pids as `holders` does; `hosts` has the host of each, or is empty."""
    if not hosts:
        return pids(numbers)
    on: dict[str, list[int]] = {}
    for number, host in zip(numbers, hosts, strict=False):
        on.setdefault(host, []).append(number)
    return ", ".join(f"{pids(several)} on {host}" for host, several in on.items())


def pids(numbers: Sequence[int]) -> str:
    """Say a list of pids: "pid 7", "pids 7, 8"."""
    shown = [str(each) for each in numbers]
    if not shown:
        return ""
    return f"pid{'s' if len(shown) > 1 else ''} {', '.join(shown)}"
