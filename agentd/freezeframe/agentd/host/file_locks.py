"""Locks on files and who waits for them: /proc/locks."""

from __future__ import annotations

from dataclasses import dataclass

from freezeframe.agentd.host import procfs

_READ_LIMIT = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLock:
    """One lock that others wait for."""

    # "flock", "posix", "ofd" or "lease".
    kind: str
    # "MAJOR:MINOR:INODE" of the file, as the kernel writes it.
    file: str
    # Process that took it; 0 where it belongs to an open file (ofd), whoever has that.
    owner_pid: int
    waiting_pids: tuple[int, ...]


_KINDS = {"FLOCK": "flock", "POSIX": "posix", "OFDLCK": "ofd", "LEASE": "lease"}
_FIELDS = 8


def read(proc: str) -> tuple[FileLock, ...]:
    """Read those that somebody waits for. Raises ProcfsError."""
    return parse(procfs.read_file(f"{proc}/locks", _READ_LIMIT))


def parse(data: bytes) -> tuple[FileLock, ...]:
    """Parse `locks`: "1: FLOCK ADVISORY WRITE 812 00:2f:123 0 EOF", waiters below with the same number and "->"."""
    owners: dict[bytes, tuple[str, str, int]] = {}
    waiting: dict[bytes, list[int]] = {}
    for line in data.splitlines():
        number, *fields = line.split() or [b""]
        waits = fields[:1] == [b"->"]
        if waits:
            fields = fields[1:]
        if len(fields) < _FIELDS - 1:
            continue
        kind = _KINDS.get(fields[0].decode("ascii", "replace"))
        try:
            pid = int(fields[3])
        except ValueError:
            continue
        if kind is None:
            continue
        if waits:
            waiting.setdefault(number, []).append(pid)
        else:
            owners[number] = kind, fields[4].decode("ascii", "replace"), max(0, pid)
    return tuple(
        FileLock(kind=kind, file=file, owner_pid=owner, waiting_pids=tuple(waiting[number]))
        for number, (kind, file, owner) in owners.items()
        if number in waiting
    )
