"""Programs, maps and links in the kernel, asked of the kernel itself by their ids."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import struct
from pathlib import Path

_SYS_BPF = 321
_OBJ_GET_INFO_BY_FD = 15
_INFO_BYTES = 88
_PROG_ARRAY = 3
_BY_ID = {"prog_id": 13, "map_id": 14, "link_id": 30}

Objects = set[tuple[str, int]]


def held_by(pid: int) -> Objects:
    """What a process has descriptors of."""
    found: Objects = set()
    with contextlib.suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fdinfo"):
            with contextlib.suppress(OSError):
                info = Path(f"/proc/{pid}/fdinfo/{name}").read_text()
                found |= {
                    (kind, int(number))
                    for kind, number in re.findall(r"^(prog_id|map_id|link_id):\s+(\d+)", info, re.MULTILINE)
                }
    return found


def present(objects: Objects) -> Objects:
    """Those of them that the kernel still has."""
    return {each for each in objects if _exists(*each)}


def program_arrays(objects: Objects) -> Objects:
    """Those of them that are arrays of programs to continue with."""
    return {(kind, number) for kind, number in objects if kind == "map_id" and _map_type(number) == _PROG_ARRAY}


def _map_type(number: int) -> int:
    libc = ctypes.CDLL(None)
    attribute = (ctypes.c_uint32 * 4)(number, 0, 0, 0)
    descriptor = libc.syscall(_SYS_BPF, _BY_ID["map_id"], ctypes.byref(attribute), 16)
    if descriptor < 0:
        return 0
    try:
        info = ctypes.create_string_buffer(_INFO_BYTES)
        question = struct.pack("=IIQ", descriptor, _INFO_BYTES, ctypes.addressof(info))
        libc.syscall(_SYS_BPF, _OBJ_GET_INFO_BY_FD, ctypes.create_string_buffer(question, 16), 16)
        return int(struct.unpack_from("=I", info.raw)[0])
    finally:
        os.close(descriptor)


def _exists(kind: str, number: int) -> bool:
    attribute = (ctypes.c_uint32 * 4)(number, 0, 0, 0)
    descriptor = ctypes.CDLL(None).syscall(_SYS_BPF, _BY_ID[kind], ctypes.byref(attribute), 16)
    if descriptor < 0:
        return False
    os.close(descriptor)
    return True
