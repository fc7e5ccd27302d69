"""Snapshot files: opened with what is whole, saved under a name that says host and time."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from freezeframe.client import spooled
from freezeframe.client.errors import (
    DamagedFileError,
    NewerFormatError,
    NotASnapshotError,
    SaveError,
    TooManyHostsError,
    UnknownHostError,
)
from freezeframe.judge import SCHEMA, file
from freezeframe.judge.fleet import distinct_names
from freezeframe.judge.needed import Needed
from freezeframe.v1 import meta_pb2, snapshot_pb2

# Unpacked records of several hosts that may be in memory at once: as messages they take four times as much.
MOST_AT_ONCE_BYTES = 64_000_000
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MANY = 1000
# Hosts that a sentence names.
_NAMED = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a file holds. Its hosts are read when they are asked for, one after the other, and none is kept."""

    name: str
    # What its head says: of several hosts the verdict over all, too, and which of them brought nothing.
    manifest: file.Manifest
    hosts: Sequence[spooled.Host]
    # What a newer writer may have said that this version cannot show; empty when nothing.
    newer: str = ""
    # What is lost of a damaged file, a sentence each; of a host it is known once that was read.
    lost: list[str] = field(default_factory=list)

    @property
    def is_fleet(self) -> bool:
        """Whether several hosts were captured together."""
        return bool(self.manifest.missing) or (len(self.hosts) > 1 and self.manifest.HasField("verdict"))

    @property
    def lights(self) -> tuple[snapshot_pb2.Snapshot, ...]:
        """Meta, outcomes and verdict of each host: what the head says."""
        return tuple(host.light for host in self.hosts)

    @property
    def names(self) -> list[str]:
        """The hosts by the names that references have; all are different."""
        return distinct_names([host.part.meta.host for host in self.hosts])

    def read(self, host: spooled.Host, only: Collection[str] | None = None) -> snapshot_pb2.Snapshot:
        """Unpack a host: the sections called as in `only`, or all. Raises NotASnapshotError."""
        passed = () if only is None else {section.name for section in host.part.sections}.difference(only)
        try:
            return host.read(self.lost, passed)
        except OSError as error:
            raise _unreadable(self.name, error) from error

    def each(self, only: Collection[str] | None = None) -> Iterator[snapshot_pb2.Snapshot]:
        """Unpack one host after the other, as `read` does."""
        return (self.read(host, only) for host in self.hosts)

    def needed(self) -> Iterator[Needed]:
        """What is judged of each host, one after the other. Raises NotASnapshotError."""
        try:
            yield from spooled.needed_of(self.hosts, self.lost)
        except OSError as error:
            raise _unreadable(self.name, error) from error

    def all_at_once(self, what: str) -> tuple[snapshot_pb2.Snapshot, ...]:
        """Unpack all hosts. Raises TooManyHostsError where they are too many to be in memory for `what`."""
        unpacked = sum(section.bytes for host in self.hosts for section in host.part.sections)
        if len(self.hosts) > 1 and unpacked > MOST_AT_ONCE_BYTES:
            raise TooManyHostsError(
                f"{what} {self.name}: it takes all {len(self.hosts)} hosts in memory at once, and their records are "
                f"{unpacked / 1e6:,.0f} MB, more than {MOST_AT_ONCE_BYTES / 1e6:.0f} MB",
                f"choose one with --host NAME: {self._some_names()}",
            )
        return tuple(self.each())

    def of_host(self, name: str) -> Opened:
        """This one host of it, as a file of its own would say it. Raises UnknownHostError."""
        names = self.names
        if name not in names:
            raise UnknownHostError(
                f"opening {self.name}: it has no host {name!r}", f"it has {self._some_names()}: freezeframe show FILE"
            )
        host = self.hosts[names.index(name)]
        verdict = host.part.verdict if host.part.HasField("verdict") else None
        manifest = file.Manifest(writer=self.manifest.writer, hosts=[host.part], verdict=verdict)
        return replace(self, manifest=manifest, hosts=(host,), newer=newer(self.name, [host.part.meta]), lost=[])

    def _some_names(self) -> str:
        names = self.names
        more = len(names) - _NAMED
        return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def load(path: str, host: str | None = None) -> Opened:
    """Open the file at `path`, or what it has of one `host`. Raises FileError, UnknownHostError."""
    try:
        with open(path, "rb") as source:
            data, whole = _read(source)
        opened = _opened(data, path, data if whole else path)
    except OSError as error:
        raise _unreadable(path, error) from error
    return opened if host is None else opened.of_host(host)


def _unreadable(path: str, error: OSError) -> NotASnapshotError:
    return NotASnapshotError(
        f"opening {path}: {error.strerror}", "give the path of a file that snap wrote and that you may read"
    )


def _read(source: BinaryIO) -> tuple[bytes, bool]:
    """Read what belongs to the snapshot and one byte more, whatever comes behind it.

    Of several hosts in a file that can be read again the head alone is; then the second value is False.
    """
    data = source.read(file.HEAD_BYTES)
    # `parse` says what is wrong.
    with contextlib.suppress(file.FileFormatError):
        data += source.read(file.manifest_end(data) - len(data))
        manifest = file.read_manifest(data)
        if len(manifest.hosts) > 1 and source.seekable():
            return data, False
        size = file.whole_size(manifest, len(data))
        data += source.read(min(size, file.MAX_UNPACKED_BYTES) - len(data) + 1)
    return data, True


def parse(data: bytes, name: str) -> Opened:
    """Open the bytes of a file called `name`. Raises FileError when nothing of them can be shown."""
    return _opened(data, name, data)


def _opened(head: bytes, name: str, source: str | bytes) -> Opened:
    """Open a file of which `head` has the beginning at least."""
    try:
        manifest = file.read_manifest(head)
    except file.NotASnapshotError as error:
        raise NotASnapshotError(f"opening {name}: {error.detail}", error.hint) from error
    except file.TooNewError as error:
        raise NewerFormatError(f"opening {name}: {error.detail}", error.hint) from error
    except file.FileFormatError as error:
        raise DamagedFileError(f"opening {name}: {error.detail}", error.hint) from error
    if not manifest.hosts:
        raise DamagedFileError(f"opening {name}: there is no host in it")
    begin = file.manifest_end(head)
    size = len(source) if isinstance(source, bytes) else os.stat(source).st_size
    return Opened(
        name=name,
        manifest=manifest,
        hosts=spooled.hosts_of(manifest, source, begin),
        newer=newer(name, [part.meta for part in manifest.hosts]),
        lost=[file.BEHIND] if size > file.whole_size(manifest, begin) else [],
    )


def newer(name: str, metas: Iterable[meta_pb2.Meta]) -> str:
    """Say what a newer writer may have said that this version cannot show; empty when nothing."""
    schema = max(meta.schema for meta in metas)
    if schema <= SCHEMA:
        return ""
    return (
        f"{name} was written by a newer version (schema {schema}; this one knows {SCHEMA}): "
        "what is new in it is not shown"
    )


def lost_sections(host: spooled.Host, snapshot: snapshot_pb2.Snapshot) -> frozenset[str]:
    """Names of the sections of a host that its unpacked snapshot lacks."""
    there = {described.name for described, _ in snapshot.ListFields()}
    return frozenset(section.name for section in host.part.sections if section.items and section.name not in there)


def default_name(meta: meta_pb2.Meta) -> str:
    """Name the file of a snapshot: HOST-TIME.ffz."""
    host = _UNSAFE.sub("_", meta.host).strip("._-")[:100] or "host"
    moment = _UNSAFE.sub("", meta.started_at.replace(":", "").replace("-", ""))[:30] or "undated"
    return f"{host}-{moment}.ffz"


def save(data: bytes, meta: meta_pb2.Meta, wanted: str | None) -> str:
    """Write the file (0600, whole or not at all) and give its path. Raises SaveError.

    Without `wanted`, or where that is a directory, the name is the default one and nothing is overwritten.
    """
    return write(data, place(meta, wanted))


def place(meta: meta_pb2.Meta, wanted: str | None) -> str:
    """Choose the path of a snapshot's file, as `save` does."""
    name = default_name(meta)
    if wanted is not None and not os.path.isdir(wanted):
        return wanted
    return _unused(os.path.join(wanted, name) if wanted is not None else name)


def write(data: bytes, path: str) -> str:
    """Write a file (0600, whole or not at all) and give its path. Raises SaveError."""
    return write_pieces([data], path)


def write_pieces(pieces: Iterable[bytes], path: str) -> str:
    """As `write`, piece by piece."""
    temporary = f"{path}.{secrets.token_hex(4)}.part"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            # Without fsync: on a host whose disk hangs, the verdict must still reach the screen.
            with os.fdopen(descriptor, "wb") as target:
                _hand_over(descriptor)
                target.writelines(pieces)
            os.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise SaveError(f"writing {path}: {error.strerror}", "name another place with -o FILE") from error
    return path


def write_below(data: bytes, folder: str, name: str) -> None:
    """Write the file `name`, "FOLDER/FILE", below `folder`; directories that are missing are made. Raises SaveError."""
    path = os.path.join(folder, name)
    for directory in (folder, os.path.dirname(path)):
        if os.path.isdir(directory):
            continue
        try:
            os.makedirs(directory)
            descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SaveError(f"making {directory}: {error.strerror}", "name another folder with -o") from error
        _hand_over(descriptor)
        os.close(descriptor)
    write(data, path)


def _hand_over(descriptor: int) -> None:
    """Give the file to who ran sudo: they carry it elsewhere without being root."""
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    if os.geteuid() == 0 and uid.isdecimal() and gid.isdecimal():
        with contextlib.suppress(OSError):
            os.fchown(descriptor, int(uid), int(gid))


def _unused(path: str) -> str:
    stem, extension = os.path.splitext(path)
    for number in range(1, _MANY):
        if not os.path.lexists(path):
            break
        path = f"{stem}-{number}{extension}"
    return path
