"""Snapshot files: opened with what is whole, saved under a name that says host and time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

from freezeframe.client.errors import DamagedFileError, NewerFormatError, NotASnapshotError, SaveError
from freezeframe.judge import SCHEMA, file
from freezeframe.v1 import meta_pb2, snapshot_pb2

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_MANY = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What a file holds."""

    # One per host.
    snapshots: tuple[snapshot_pb2.Snapshot, ...]
    # What is lost of a damaged file, a sentence each.
    lost: tuple[str, ...]
    # What a newer writer may have said that this version cannot show; empty when nothing.
    newer: str
    # Names of the sections that are lost, one set per snapshot.
    lost_sections: tuple[frozenset[str], ...] = ()
    # What its head says beside: of several hosts the verdict over all, and which of them brought nothing.
    manifest: file.Manifest = dataclasses.field(default_factory=file.Manifest)

    @property
    def is_fleet(self) -> bool:
        """Whether several hosts were captured together."""
        return bool(self.manifest.missing) or (len(self.snapshots) > 1 and self.manifest.HasField("verdict"))


def load(path: str) -> Opened:
    """Open the file at `path`. Raises FileError."""
    try:
        with open(path, "rb") as source:
            data = _read(source)
    except OSError as error:
        raise NotASnapshotError(
            f"opening {path}: {error.strerror}", "give the path of a file that snap wrote and that you may read"
        ) from error
    return parse(data, path)


def _read(source: BinaryIO) -> bytes:
    """Read what belongs to the snapshot and one byte more, whatever comes behind it."""
    data = source.read(file.HEAD_BYTES)
    # `parse` says what is wrong.
    with contextlib.suppress(file.FileFormatError):
        data += source.read(file.manifest_end(data) - len(data))
        size = file.whole_size(file.read_manifest(data), len(data))
        data += source.read(min(size, file.MAX_UNPACKED_BYTES) - len(data) + 1)
    return data


def parse(data: bytes, name: str) -> Opened:
    """Unpack the bytes of a file called `name`. Raises FileError when nothing of them can be shown."""
    try:
        contents = file.read(data)
    except file.NotASnapshotError as error:
        raise NotASnapshotError(f"opening {name}: {error.detail}", error.hint) from error
    except file.TooNewError as error:
        raise NewerFormatError(f"opening {name}: {error.detail}", error.hint) from error
    except file.FileFormatError as error:
        raise DamagedFileError(f"opening {name}: {error.detail}", error.hint) from error
    if not contents.hosts:
        raise DamagedFileError(f"opening {name}: there is no host in it")
    lost = tuple(
        frozenset(section.name for section in part.sections if section.items and not _has(snapshot, section.name))
        for part, snapshot in zip(contents.manifest.hosts, contents.hosts, strict=True)
    )
    return Opened(
        snapshots=contents.hosts,
        lost=contents.lost,
        newer=newer(name, contents.hosts),
        lost_sections=lost,
        manifest=contents.manifest,
    )


def newer(name: str, snapshots: Iterable[snapshot_pb2.Snapshot]) -> str:
    """Say what a newer writer may have said that this version cannot show; empty when nothing."""
    schema = max(snapshot.meta.schema for snapshot in snapshots)
    if schema <= SCHEMA:
        return ""
    return (
        f"{name} was written by a newer version (schema {schema}; this one knows {SCHEMA}): "
        "what is new in it is not shown"
    )


def _has(snapshot: snapshot_pb2.Snapshot, name: str) -> bool:
    return any(field.name == name for field, _ in snapshot.ListFields())


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
