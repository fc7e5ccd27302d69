"""Programs, maps and links in the kernel, asked of the kernel itself by their ids."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from pathlib import Path

_SYS_BPF = 321
_PROGRAM_BY_ID = 13
_NEXT_ID = {"prog_id": 11, "map_id": 12, "link_id": 31}

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


def _exists(kind: str, number: int) -> bool:
    """By the next id, not by a descriptor: one that is opened while the kernel lets go of a map keeps it for ever."""
    attribute = (ctypes.c_uint32 * 4)(number - 1, 0, 0, 0)
    failed = ctypes.CDLL(None).syscall(_SYS_BPF, _NEXT_ID[kind], ctypes.byref(attribute), 16)
    return not failed and attribute[1] == number


def run_ns(pid: int) -> int:
    """Time that the programs a process has attached ran for, while the kernel measured that."""
    return sum(_run_ns(number) for kind, number in held_by(pid) if kind == "prog_id")


def _run_ns(program: int) -> int:
    attribute = (ctypes.c_uint32 * 4)(program, 0, 0, 0)
    fd = ctypes.CDLL(None, use_errno=True).syscall(_SYS_BPF, _PROGRAM_BY_ID, ctypes.byref(attribute), 16)
    if fd < 0:
        raise OSError(ctypes.get_errno(), f"opening program {program}")
    try:
        info = Path(f"/proc/self/fdinfo/{fd}").read_text()
    finally:
        os.close(fd)
    return int(re.search(r"^run_time_ns:\s+(\d+)", info, re.MULTILINE)[1])  # type: ignore[index]
