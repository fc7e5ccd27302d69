"""The directory of kept snapshots: every call blocks on the disk.

All names are opened relative to one directory descriptor and never through a link.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO

from freezeframe.agentd.config import StoreLimits
from freezeframe.agentd.errors import (
    BadRequestError,
    SnapshotDamagedError,
    SnapshotPinnedError,
    StoreFailedError,
    UnknownSnapshotError,
)
from freezeframe.agentd.store.whole import write_whole
from freezeframe.judge import file

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)
_SUFFIX = ".ffz"
_PIN = ".pin"
_COPIED = ".copied"
_TEMPORARY = ".tmp"
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW
# Enough for the manifest of nearly every file in one read.
_HEAD_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One kept snapshot, as far as its head tells."""

    snapshot_id: str
    # None when it cannot be read.
    manifest: file.Manifest | None
    size_bytes: int
    pinned: bool
    # What is wrong with the file; empty when nothing is.
    damage: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What the store holds, and what is wrong with it."""

    snapshots: int
    pinned: int
    size_bytes: int
    # On the store's disk, for this user.
    free_bytes: int
    # What is wrong, by snapshot.
    damaged: tuple[tuple[str, str], ...]
    # Not read in full in the time given; the next check goes on.
    unchecked: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    snapshot_id: str
    size_bytes: int
    modified_ns: int
    pinned: bool


class Directory:
    """One directory; created with mode 0700 when it is missing."""

    def __init__(self, path: str, limits: StoreLimits) -> None:
        """Open it and remove what a killed writer left. Raises StoreFailedError."""
        self._limits = limits
        # What a full read of a file found, for as long as the file stays as it is.
        self._checked: dict[_Entry, str] = {}
        with _translated(f"opening the store {path}"):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
            found = os.fstat(self._fd)
            if found.st_uid != os.geteuid():
                os.close(self._fd)
                raise StoreFailedError(
                    f"the store {path} belongs to uid {found.st_uid}, not to this agent (uid {os.geteuid()})",
                    f"chown {os.geteuid()} {path}, or set state_dir",
                )
            if stat.S_IMODE(found.st_mode) & 0o077:
                os.fchmod(self._fd, 0o700)
            names = set(os.listdir(self._fd))
            for name in names:
                alone = name.endswith(_COPIED) and name.removesuffix(_COPIED) + _SUFFIX not in names
                if alone or (name.startswith(".") and name.endswith(_TEMPORARY)):
                    os.unlink(name, dir_fd=self._fd)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)

    def put(self, snapshot_id: str, data: bytes) -> None:
        """Keep a snapshot, then remove the oldest unpinned ones that exceed the limits. Raises StoreFailedError."""
        _check_id(snapshot_id)
        with _translated(f"keeping {snapshot_id} ({len(data):,} bytes)"):
            if len(data) > self._limits.max_bytes:
                raise StoreFailedError(
                    f"keeping {snapshot_id} ({len(data):,} bytes): the store takes {self._limits.max_bytes:,}",
                    "raise store.max_bytes",
                )
            pinned = [entry for entry in self._entries() if entry.pinned]
            if len(pinned) >= self._limits.max_snapshots or (
                sum(entry.size_bytes for entry in pinned) + len(data) > self._limits.max_bytes
            ):
                raise StoreFailedError(
                    f"keeping {snapshot_id} ({len(data):,} bytes): {len(pinned)} pinned snapshots leave no room",
                    "freezeframe pin --unpin, or raise store.max_bytes and store.max_snapshots",
                )
            temporary = f".{snapshot_id[:100]}.{secrets.token_hex(8)}{_TEMPORARY}"
            write_whole(self._fd, snapshot_id + _SUFFIX, data, temporary=temporary)
            self._trim(snapshot_id)

    def kept(self, limit: int = 0) -> list[Kept]:
        """List what is kept, newest first, at most `limit` (0 = all); reads the heads of files only."""
        with _translated("listing the store"):
            entries = self._entries()
        return [self._look(entry) for entry in (entries[:limit] if limit else entries)]

    def check(self, limit_s: float) -> Condition:
        """Read files in full against their digests for `limit_s`, the newest first, each once as long as it stays."""
        until = time.monotonic() + limit_s
        with _translated("checking the store"):
            entries = self._entries()
            known = {entry: self._checked[entry] for entry in entries if entry in self._checked}
            for entry in entries:
                if entry not in known and time.monotonic() < until:
                    known[entry] = self._look(entry).damage or self._read_through(entry)
            self._checked = known
            disk = os.fstatvfs(self._fd)
        return Condition(
            snapshots=len(entries),
            pinned=sum(entry.pinned for entry in entries),
            size_bytes=sum(entry.size_bytes for entry in entries),
            free_bytes=disk.f_bavail * disk.f_frsize,
            damaged=tuple((entry.snapshot_id, known[entry]) for entry in entries if known.get(entry)),
            unchecked=sum(entry not in known for entry in entries),
        )

    def reader(self, snapshot_id: str | None) -> tuple[str, IO[bytes]]:
        """Open a kept file for reading; None means the newest. Gives its id too."""
        with _translated(f"opening {snapshot_id or 'the newest snapshot'}"):
            if snapshot_id is None:
                entries = self._entries()
                if not entries:
                    raise UnknownSnapshotError("no snapshot is kept here", "take one: freezeframe snap")
                snapshot_id = entries[0].snapshot_id
            return snapshot_id, self._open(snapshot_id)

    def delete(self, snapshot_id: str) -> None:
        """Delete one that is not pinned."""
        with _translated(f"deleting {snapshot_id}"):
            if self._find(snapshot_id).pinned:
                raise SnapshotPinnedError(f"{snapshot_id} is pinned", f"freezeframe pin --unpin {snapshot_id}")
            self._unlink(snapshot_id)
            os.fsync(self._fd)

    def uncopied(self) -> list[str]:
        """List the snapshots that `copied` was not called for, oldest first."""
        with _translated("listing the store"):
            names = set(os.listdir(self._fd))
            entries = reversed(self._entries())
        return [entry.snapshot_id for entry in entries if entry.snapshot_id + _COPIED not in names]

    def copied(self, snapshot_id: str) -> None:
        """Mark one as copied; one that has gone meanwhile is no error."""
        with _translated(f"marking {snapshot_id} as copied"), contextlib.suppress(UnknownSnapshotError):
            self._mark(self._find(snapshot_id).snapshot_id + _COPIED)
            os.fsync(self._fd)

    def pin(self, snapshot_id: str, pinned: bool) -> None:
        """Pin or unpin; doing it twice is no error."""
        with _translated(f"pinning {snapshot_id}" if pinned else f"unpinning {snapshot_id}"):
            self._find(snapshot_id)
            if pinned:
                self._mark(snapshot_id + _PIN)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(snapshot_id + _PIN, dir_fd=self._fd)
            os.fsync(self._fd)

    def _entries(self) -> list[_Entry]:
        """Find the files, newest first."""
        names = set(os.listdir(self._fd))
        entries = []
        for name in names:
            snapshot_id = name.removesuffix(_SUFFIX)
            if snapshot_id == name or _ID.fullmatch(snapshot_id) is None:
                continue
            try:
                found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            entries.append(
                _Entry(
                    snapshot_id=snapshot_id,
                    size_bytes=found.st_size,
                    modified_ns=found.st_mtime_ns,
                    pinned=snapshot_id + _PIN in names,
                )
            )
        return sorted(entries, key=lambda entry: (entry.modified_ns, entry.snapshot_id), reverse=True)

    def _find(self, snapshot_id: str) -> _Entry:
        _check_id(snapshot_id)
        for entry in self._entries():
            if entry.snapshot_id == snapshot_id:
                return entry
        raise _unknown(snapshot_id)

    def _open(self, snapshot_id: str) -> IO[bytes]:
        _check_id(snapshot_id)
        try:
            # O_NONBLOCK: a fifo of that name must not hang; it changes nothing for a regular file.
            fd = os.open(snapshot_id + _SUFFIX, os.O_RDONLY | os.O_NONBLOCK | _FLAGS, dir_fd=self._fd)
        except FileNotFoundError:
            raise _unknown(snapshot_id) from None
        except OSError as error:
            if error.errno in {errno.ELOOP, errno.ENXIO}:
                raise SnapshotDamagedError(f"{snapshot_id} is no regular file", "remove it from the store") from error
            raise
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise SnapshotDamagedError(f"{snapshot_id} is no regular file", "remove it from the store")
        return os.fdopen(fd, "rb")

    def _look(self, entry: _Entry) -> Kept:
        make = partial(Kept, snapshot_id=entry.snapshot_id, size_bytes=entry.size_bytes, pinned=entry.pinned)
        try:
            with self._open(entry.snapshot_id) as stream:
                head = stream.read(_HEAD_BYTES)
                end = file.manifest_end(head)
                if end > len(head):
                    head += stream.read(end - len(head))
            manifest = file.read_manifest(head)
        except (file.FileFormatError, SnapshotDamagedError, UnknownSnapshotError) as error:
            return make(manifest=None, damage=error.detail)
        except OSError as error:
            return make(manifest=None, damage=f"reading it: {error.strerror}")
        whole = file.whole_size(manifest, end)
        damage = "" if whole == entry.size_bytes else f"it has {entry.size_bytes:,} of {whole:,} bytes"
        return make(manifest=manifest, damage=damage or self._checked.get(entry, ""))

    def _read_through(self, entry: _Entry) -> str:
        """Read a file whose head is right against the digests of its sections; says what does not match."""
        try:
            with self._open(entry.snapshot_id) as stream:
                end = file.manifest_end(stream.read(file.HEAD_BYTES))
                stream.seek(0)
                manifest = file.read_manifest(stream.read(end))
                wrong = [
                    section.name
                    for part in manifest.hosts
                    for section in part.sections
                    if hashlib.sha256(stream.read(int(section.compressed_bytes))).digest() != section.digest
                ]
        except (file.FileFormatError, SnapshotDamagedError, UnknownSnapshotError) as error:
            return error.detail
        except OSError as error:
            return f"reading it: {error.strerror}"
        return f"bytes were changed in {', '.join(wrong)}" if wrong else ""

    def _trim(self, newest: str) -> None:
        entries = self._entries()
        count = len(entries)
        size = sum(entry.size_bytes for entry in entries)
        for entry in reversed(entries):
            if count <= self._limits.max_snapshots and size <= self._limits.max_bytes:
                return
            if not entry.pinned and entry.snapshot_id != newest:
                self._unlink(entry.snapshot_id)
                count -= 1
                size -= entry.size_bytes

    def _mark(self, name: str) -> None:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY | _FLAGS, 0o600, dir_fd=self._fd))

    def _unlink(self, snapshot_id: str) -> None:
        os.unlink(snapshot_id + _SUFFIX, dir_fd=self._fd)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(snapshot_id + _COPIED, dir_fd=self._fd)


def _check_id(snapshot_id: str) -> None:
    if _ID.fullmatch(snapshot_id) is None:
        raise BadRequestError(f"{snapshot_id[:80]!r} is no snapshot id", "freezeframe list shows the ids")


def _unknown(snapshot_id: str) -> UnknownSnapshotError:
    return UnknownSnapshotError(f"no snapshot {snapshot_id} is kept here", "freezeframe list shows what is")


@contextlib.contextmanager
def _translated(doing: str) -> Iterator[None]:
    """Turn the system's errors into ours."""
    try:
        yield
    except OSError as error:
        hint = "free space on the disk of the state directory" if error.errno in {errno.ENOSPC, errno.EDQUOT} else ""
        raise StoreFailedError(f"{doing}: {error.strerror}", hint) from error
