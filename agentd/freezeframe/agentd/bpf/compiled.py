"""A program file as `programs` writes it down, and what compiling it gives: maps and bytecode, for one kernel."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

# 64 bits of a constant, which take two instructions: with this source register the constant is a map's descriptor.
_LOAD_64_BITS, _MAP_DESCRIPTOR = 0x18, 1
_INSTRUCTION = struct.Struct("=BBhi")


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """One program of a file and where it is attached.

    "typed:sys_exit" (a raw tracepoint whose arguments the verifier knows by the kernel's BTF), "raw:sys_exit",
    "tracepoint:sock:inet_sock_set_state".
    """

    function: str
    point: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFile:
    """One file to compile, and what to attach of it; functions made by TRACEPOINT_PROBE need not be named."""

    # "ledger.bpf.c", in this room.
    file: str
    attachments: tuple[Attachment, ...] = ()
    # Constants, through -D.
    defines: tuple[tuple[str, int], ...] = ()
    # Programs that others continue with, in the order of the table `continuations`: for a point, but not attached.
    continuations: tuple[Attachment, ...] = ()
    # Whether it is compiled or attached by what tracefs says of the kernel's events.
    needs_tracefs: bool = False
    # What is run when this one cannot be: tried in order.
    otherwise: ProgramFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MapShape:
    """What the kernel is told of a map."""

    name: str
    # enum bpf_map_type.
    kind: int
    key_size: int
    value_size: int
    max_entries: int
    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One compiled file. In the bytecode a map is named by its place in `maps`."""

    maps: tuple[MapShape, ...]
    # By function.
    code: Mapping[str, bytes]
    attachments: tuple[Attachment, ...]
    continuations: tuple[Attachment, ...]
    # What the kernel calls a point: of a tracepoint the event's id, of a typed one the id of its type.
    ids: Mapping[str, int]

    def to_json(self) -> str:
        """All of it as text."""
        code = {name: base64.b64encode(each).decode() for name, each in self.code.items()}
        return json.dumps({**asdict(self), "code": code})


def from_json(text: str | bytes) -> Compiled:
    """Read what `to_json` wrote. Raises ValueError, KeyError or TypeError."""
    given = json.loads(text)
    return Compiled(
        maps=tuple(MapShape(**each) for each in given["maps"]),
        code={name: base64.b64decode(each, validate=True) for name, each in given["code"].items()},
        attachments=_attachments(given["attachments"]),
        continuations=_attachments(given["continuations"]),
        ids={str(point): int(number) for point, number in given["ids"].items()},
    )


def program_from_json(text: str) -> ProgramFile:
    """Read a ProgramFile that was written as JSON, by `dataclasses.asdict`, without what is run otherwise."""
    given = json.loads(text)
    return ProgramFile(
        file=given["file"],
        attachments=_attachments(given["attachments"]),
        defines=tuple((name, value) for name, value in given["defines"]),
        continuations=_attachments(given["continuations"]),
        needs_tracefs=given["needs_tracefs"],
    )


def _attachments(given: list[dict[str, Any]]) -> tuple[Attachment, ...]:
    return tuple(Attachment(**each) for each in given)


def with_maps(code: bytes, name: Callable[[int], int]) -> bytes:
    """Name each map of the bytecode otherwise."""
    changed = bytearray(code)
    for at in range(0, len(code), _INSTRUCTION.size):
        operation, registers, offset, number = _INSTRUCTION.unpack_from(code, at)
        if operation == _LOAD_64_BITS and registers >> 4 == _MAP_DESCRIPTOR:
            _INSTRUCTION.pack_into(changed, at, operation, registers, offset, name(number))
    return bytes(changed)
