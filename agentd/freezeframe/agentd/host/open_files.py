"""Files that a process has open or mapped, by what it calls them, and read through its own descriptor table.

/proc/PID/fd/N leads to the file itself, in whatever mount namespace it lies and whether it still has a name or not. A
file that was mapped and closed is found in /proc/PID/maps, and read below /proc/PID/root if it is still the same.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from freezeframe.agentd.host.procfs import UnreadableError, translated

_DELETED = " (deleted)"
# Mappings of an engine with CUDA: some thousand lines of a hundred bytes.
_MAPS_BYTES = 8 * 1024 * 1024
_MAPPING = re.compile(rb"^\S+ \S+ \S+ ([0-9a-f]+):([0-9a-f]+) (\d+) +(/.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenFile:
    """One file of one process."""

    # What to open: "/proc/4711/fd/12".
    path: str
    # What the process calls it.
    name: str
    # Device and inode of a mapped one, which the path need not lead to any more; None for an open one.
    identity: tuple[int, int] | None = None


def opened(directory: str) -> list[OpenFile]:
    """Files by name that the process ("/proc/4711") has open. Raises ProcfsError."""
    found = []
    table = f"{directory}/fd"
    try:
        for descriptor in os.listdir(table):
            try:
                name = os.readlink(f"{table}/{descriptor}")
            except FileNotFoundError:
                continue  # closed meanwhile
            if name.startswith("/"):
                found.append(OpenFile(path=f"{table}/{descriptor}", name=name.removesuffix(_DELETED)))
    except OSError as error:
        raise translated(error, table) from error
    return found


def mapped(directory: str) -> list[OpenFile]:
    """Files that the process has mapped. Waits for its mmap_lock.

    Raises:
        ProcfsError: the mappings cannot be read.
    """
    found: dict[tuple[int, int], OpenFile] = {}
    try:
        with open(f"{directory}/maps", "rb") as stream:
            mappings = stream.read(_MAPS_BYTES)
    except OSError as error:
        raise translated(error, f"{directory}/maps") from error
    for major, minor, inode, path in _MAPPING.findall(mappings):
        name = os.fsdecode(path)
        identity = os.makedev(int(major, 16), int(minor, 16)), int(inode)
        found[identity] = OpenFile(path=f"{directory}/root{name}", name=name, identity=identity)
    return list(found.values())


@contextmanager
def reading(file: OpenFile) -> Iterator[tuple[int, os.stat_result]]:
    """Descriptor and state of a regular file, open for reading.

    Raises:
        ProcfsError: it cannot be opened, is no regular file, or another one has its name now.
    """
    try:
        descriptor = os.open(file.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise translated(error, file.path) from error
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode):
            raise UnreadableError(f"reading {file.path}: not a regular file")
        if file.identity not in (None, (state.st_dev, state.st_ino)):
            raise UnreadableError(f"reading {file.path}: another file has this name now")
        yield descriptor, state
    finally:
        os.close(descriptor)
