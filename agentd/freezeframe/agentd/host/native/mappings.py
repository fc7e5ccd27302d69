"""What a process has mapped, and the files behind it, opened so that they are the mapped ones.

A path of /proc/PID/maps names something else, or nothing, in another mount namespace, and a replaced file is another
one; /proc/PID/map_files is the mapped inode itself. Reading `maps` waits for the memory lock: for workers only, after
`host.memory.stall_of`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from freezeframe.agentd.host import procfs

# 100,000 lines: more than vm.max_map_count allows by default.
_READ_LIMIT = 16 * 1024 * 1024
_LINE = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) ([r-])([w-])([x-])[ps] ([0-9a-f]+) ([0-9a-f]+:[0-9a-f]+) (\d+) *(.*)$", re.MULTILINE
)
_FILE_BYTES = 8 * 1024 * 1024 * 1024


class Mapping(NamedTuple):
    """One line of `maps`; a tuple, since there may be thousands."""

    start: int
    end: int
    writable: bool
    executable: bool
    # Offset in the file.
    offset: int
    # Device and inode; inode 0 = no file.
    device: bytes
    inode: int
    # As the kernel writes it: a path, "[stack]", "[vdso]" or nothing.
    name: bytes

    @property
    def file(self) -> tuple[bytes, int, bytes]:
        """What tells the files of neighbouring mappings apart."""
        return self.device, self.inode, self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One file mapped with code: consecutive mappings of it."""

    start: int
    end: int
    mappings: tuple[Mapping, ...]

    @property
    def name(self) -> bytes:
        """Path as the target sees it."""
        return self.mappings[0].name


def read(directory: str) -> tuple[Mapping, ...]:
    """Read `maps` of a process. Raises ProcfsError."""
    path = f"{directory}/maps"
    try:
        with open(path, "rb", buffering=0) as file:
            chunks = []
            left = _READ_LIMIT
            while left > 0 and (chunk := file.read(min(left, 1 << 20))):
                chunks.append(chunk)
                left -= len(chunk)
    except OSError as error:
        raise procfs.translated(error, path) from error
    return parse(b"".join(chunks))


def parse(data: bytes) -> tuple[Mapping, ...]:
    """Parse `maps`; lines that are not of the kernel's form are passed over."""
    return tuple(
        Mapping(int(start, 16), int(end, 16), write == b"w", execute == b"x", int(offset, 16), device, int(inode), name)
        for start, end, _, write, execute, offset, device, inode, name in _LINE.findall(data)
    )


def modules(mappings: Iterable[Mapping]) -> tuple[Module, ...]:
    """Files with code, in order of addresses; the kernel's own page of code ([vdso]) counts as one."""
    found: list[Module] = []
    group: list[Mapping] = []

    def close() -> None:
        if any(each.executable for each in group):
            found.append(Module(start=group[0].start, end=group[-1].end, mappings=tuple(group)))
        group.clear()

    for each in mappings:
        if each.name == b"[vdso]":
            close()
            group.append(each)
            continue
        if not each.inode:
            continue  # .bss, between or behind the mappings of a file
        # The same file may be mapped a second time right behind, as a loader does that reads it first.
        if group and (each.file != group[0].file or each.offset < group[-1].offset):
            close()
        group.append(each)
    close()
    return tuple(found)


def open_file(directory: str, module: Module) -> int:
    """Open the very file that is mapped. Raises ProcfsError; where only another one is to be had, UnreadableError."""
    first = module.mappings[0]
    try:
        return _open(f"{directory}/map_files/{first.start:x}-{first.end:x}")
    except OSError:
        pass  # needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE; or the mapping changed meanwhile
    path = os.fsencode(f"{directory}/root") + first.name
    try:
        descriptor = _open(path)
    except OSError as error:
        raise procfs.translated(error, os.fsdecode(path)) from error
    if os.fstat(descriptor).st_ino != first.inode:
        os.close(descriptor)
        raise procfs.UnreadableError("the file was replaced since it was mapped")
    return descriptor


def _open(path: str | bytes) -> int:
    # A target may have mapped anything: never wait for a device or a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > _FILE_BYTES:
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file of a reasonable size")
    return descriptor
