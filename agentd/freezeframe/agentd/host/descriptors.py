"""Which process has which socket open: /proc/PID/fd, read without touching what the descriptors lead to."""

from __future__ import annotations

import os
from collections.abc import Iterable

_PREFIX = "socket:["


def sockets_of(directory: str) -> dict[int, int]:
    """Inode -> descriptor of the sockets of one process ("/proc/4711"). Raises OSError."""
    found = {}
    path = f"{directory}/fd"
    for name in os.listdir(path):
        try:
            link = os.readlink(f"{path}/{name}")
        except FileNotFoundError:
            continue  # closed meanwhile
        if link.startswith(_PREFIX):
            found[int(link[len(_PREFIX) : -1])] = int(name)
    return found


class Owners:
    """Socket inode -> who has it open, over the processes that were scanned."""

    def __init__(self) -> None:
        """Nothing scanned yet."""
        self._owners: dict[int, list[tuple[int, int]]] = {}
        self.scanned: set[int] = set()
        # Processes whose descriptors may not be listed.
        self.denied: set[int] = set()

    def scan(self, proc: str, pids: Iterable[int]) -> None:
        """Read the descriptor tables of these processes; one that has ended has none."""
        for pid in pids:
            if pid in self.scanned:
                continue
            self.scanned.add(pid)
            try:
                found = sockets_of(f"{proc}/{pid}")
            except PermissionError:
                self.denied.add(pid)
                continue
            except OSError:
                continue
            for inode, descriptor in found.items():
                self._owners.setdefault(inode, []).append((pid, descriptor))

    def forget(self, pids: Iterable[int]) -> None:
        """Drop what is known of these, to scan them again."""
        gone = set(pids)
        self.scanned -= gone
        for inode, owners in list(self._owners.items()):
            kept = [owner for owner in owners if owner[0] not in gone]
            if kept:
                self._owners[inode] = kept
            else:
                del self._owners[inode]

    def of(self, inode: int) -> list[tuple[int, int]]:
        """(pid, descriptor) of each process that has it open, lowest pid first."""
        return sorted(self._owners.get(inode, ()))

    def inodes(self, pid: int) -> list[int]:
        """Sockets of one process."""
        return [inode for inode, owners in self._owners.items() if any(owner == pid for owner, _ in owners)]
