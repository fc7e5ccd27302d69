"""Which process has which socket open: /proc/PID/fd, read without touching what the descriptors lead to."""

from __future__ import annotations

import os
from collections.abc import Iterable

_PREFIX = "socket:["


def sockets_of(directory: str) -> dict[int, int]:
    """Inode -> descriptor of the sockets of one process ("/proc/4711"). Raises OSError."""
    found = {}
    table = os.open(f"{directory}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(table):
            try:
                link = os.readlink(name, dir_fd=table)
            except FileNotFoundError:
                continue  # closed meanwhile
            if link.startswith(_PREFIX):
                found[int(link[len(_PREFIX) : -1])] = int(name)
    finally:
        os.close(table)
    return found


class Owners:
    """Socket inode -> who has it open, over the processes that were scanned."""

    def __init__(self) -> None:
        """Nothing scanned yet."""
        self._by_inode: dict[int, dict[int, int]] = {}
        self._by_pid: dict[int, dict[int, int]] = {}
        # Processes whose descriptors may not be listed.
        self.denied: set[int] = set()

    def scan(self, proc: str, pids: Iterable[int]) -> None:
        """Read the descriptor tables of these processes, also if they were read before; one that has ended has none."""
        for pid in pids:
            try:
                found = sockets_of(f"{proc}/{pid}")
            except PermissionError:
                self.denied.add(pid)
                found = {}
            except OSError:
                found = {}
            for inode in self._by_pid.get(pid, ()):
                self._by_inode[inode].pop(pid, None)
            self._by_pid[pid] = found
            for inode, descriptor in found.items():
                self._by_inode.setdefault(inode, {})[pid] = descriptor

    @property
    def scanned(self) -> frozenset[int]:
        """Processes whose descriptors were asked for."""
        return frozenset(self._by_pid)

    def of(self, inode: int) -> list[tuple[int, int]]:
        """(pid, descriptor) of each process that has it open, lowest pid first."""
        owners = self._by_inode.get(inode)
        if not owners:
            return []
        return sorted(owners.items()) if len(owners) > 1 else list(owners.items())

    def inodes(self, pid: int) -> Iterable[int]:
        """Sockets of one process."""
        return self._by_pid.get(pid, {})
