"""The .ffz container: one snapshot, or those of a fleet, as bytes. Pure: bytes in, bytes out.

    magic              8 bytes, damaged by every transfer that is not binary
    format version     u32, little endian
    manifest length    u32, little endian
    manifest digest    SHA-256 of the manifest, 32 bytes
    manifest           freezeframe.v1.Manifest: meta, outcomes and verdict of each host, and its sections
    sections           one zstd frame each, a freezeframe.v1.Snapshot with one field filled

Meta, outcomes and verdict stand in the manifest alone, so a list needs only the head of a file, and a file that was cut
still says where, when and what the verdict was. Every byte is covered by a digest or by a fixed value.

The format version rises only when this layout changes; new fields and sections do not change it: they open everywhere,
and what a reader does not know it carries along.

FileFormatError
├── NotASnapshotError  other bytes
├── TooNewError        a layout of a later version
└── DamagedError       nothing can be read: the head is cut or changed
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import zstandard
from google.protobuf.message import DecodeError

from freezeframe.judge import wire
from freezeframe.judge.model import Snapshot
from freezeframe.v1 import file_pb2, snapshot_pb2, verdict_pb2

# For callers that carry a manifest and do not look inside.
Manifest = file_pb2.Manifest

FORMAT = 1
MAGIC = b"\x89FFZ\r\n\x1a\n"

# What a reader accepts; a writer never comes near it. A frame is unpacked only when its declared size is within these.
MAX_MANIFEST_BYTES = 64 * 1024 * 1024
MAX_SECTION_BYTES = 256 * 1024 * 1024
MAX_UNPACKED_BYTES = 1024 * 1024 * 1024
# Records of one section: an empty one takes 2 bytes here and hundreds in memory.
MAX_ITEMS = 500_000

# Said of a file that is longer than its manifest tells.
BEHIND = "what comes after the end belongs to no section and was left out"

_HEAD = struct.Struct("<8sII32s")
HEAD_BYTES = _HEAD.size

_LEVEL = 3
_IN_MANIFEST = ("meta", "outcomes", "verdict")
# Fields of a newer schema, when a message that has them is written again.
_UNKNOWN_FIELDS = "unknown_fields"


class FileFormatError(ValueError):
    """Root of all; never raised itself. `hint` is what to do next."""

    def __init__(self, detail: str, hint: str) -> None:
        """Keep the sentence and the next step."""
        super().__init__(detail)
        self.detail = detail
        self.hint = hint


class NotASnapshotError(FileFormatError):
    """The bytes are something else."""


class TooNewError(FileFormatError):
    """The file has a layout that this version does not know."""

    def __init__(self, version: int) -> None:
        """Keep the format version that was found."""
        super().__init__(
            f"the file has format version {version}; this freezeframe reads up to {FORMAT}",
            "upgrade: pip install --upgrade freezeframe",
        )
        self.version = version


class DamagedError(FileFormatError):
    """The head of the file cannot be read, so nothing can."""

    def __init__(self, detail: str) -> None:
        """Keep what was found."""
        super().__init__(detail, "copy the file again from where it was made, in binary mode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a file holds, as far as it is whole."""

    manifest: file_pb2.Manifest
    # One per host, in the order of the manifest; meta, outcomes and verdict are always there.
    hosts: tuple[snapshot_pb2.Snapshot, ...]
    # What is damaged or missing, one sentence each; empty when nothing is.
    lost: tuple[str, ...]


def write(
    snapshots: Sequence[Snapshot | snapshot_pb2.Snapshot],
    writer: str,
    verdict: verdict_pb2.Verdict | None = None,
    missing: Sequence[file_pb2.Missing] = (),
) -> bytes:
    """Pack the snapshots of one or many hosts; equal input gives equal bytes.

    `writer` is program and version. `verdict` is that over all hosts; for one host it is that host's. `missing` are
    those that brought nothing.
    """
    manifest = file_pb2.Manifest(writer=writer, missing=missing)
    frames: list[bytes] = []
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)
    for snapshot in snapshots:
        message = _message(snapshot)
        part = manifest.hosts.add(outcomes=message.outcomes)
        if message.HasField("meta"):
            part.meta.CopyFrom(message.meta)
        if message.HasField("verdict"):
            part.verdict.CopyFrom(message.verdict)
        for name, items, plain in _split(message):
            frame = compressor.compress(plain)
            frames.append(frame)
            part.sections.add(
                name=name,
                compressed_bytes=len(frame),
                bytes=len(plain),
                digest=hashlib.sha256(frame).digest(),
                items=items,
            )
    if verdict is None and len(manifest.hosts) == 1 and manifest.hosts[0].HasField("verdict"):
        verdict = manifest.hosts[0].verdict
    if verdict is not None:
        manifest.verdict.CopyFrom(verdict)
    return b"".join([_head(manifest), *frames])


def fleet_head(
    parts: Sequence[file_pb2.HostPart],
    writer: str,
    verdict: verdict_pb2.Verdict | None,
    missing: Sequence[file_pb2.Missing] = (),
) -> bytes:
    """Give the head of a file of several hosts, of files that are there already.

    What follows it are the sections of each part's own file, in the order of `parts`: from its `manifest_end` on.
    """
    manifest = file_pb2.Manifest(writer=writer, hosts=parts, missing=missing)
    if verdict is not None:
        manifest.verdict.CopyFrom(verdict)
    return _head(manifest)


def _head(manifest: file_pb2.Manifest) -> bytes:
    head = manifest.SerializeToString(deterministic=True)
    return _HEAD.pack(MAGIC, FORMAT, len(head), hashlib.sha256(head).digest()) + head


def manifest_end(head: bytes) -> int:
    """Count the bytes from the start that `read_manifest` needs; `head` is at least HEAD_BYTES of a whole file.

    Raises NotASnapshotError, TooNewError, DamagedError.
    """
    return HEAD_BYTES + _read_head(head)[0]


def read_manifest(head: bytes) -> file_pb2.Manifest:
    """Read the manifest from a file or from its first `manifest_end` bytes.

    Raises NotASnapshotError, TooNewError, DamagedError.
    """
    length, digest = _read_head(head)
    encoded = head[HEAD_BYTES : HEAD_BYTES + length]
    if len(encoded) < length:
        raise DamagedError(f"the manifest is cut: {len(encoded):,} of its {length:,} bytes are there")
    if hashlib.sha256(encoded).digest() != digest:
        raise DamagedError("the manifest does not match its digest: bytes were changed")
    try:
        manifest = file_pb2.Manifest.FromString(encoded)
    except DecodeError as error:
        raise DamagedError(f"decoding the manifest of {length:,} bytes: {error}") from error
    for part in manifest.hosts:
        unpacked = 0.0
        for section in part.sections:
            if not _is_size(section.compressed_bytes) or not _is_size(section.bytes):
                raise DamagedError(f"the manifest gives section {section.name!r} a size that no file of ours has")
            unpacked += section.bytes
        # Each host's share: what all of them take is bounded by the reader's memory.
        if unpacked > MAX_UNPACKED_BYTES:
            raise DamagedError(f"the manifest declares {unpacked:,.0f} bytes, more than any snapshot has")
    return manifest


def whole_size(manifest: file_pb2.Manifest, end: int) -> int:
    """Count the bytes of the whole file, given its manifest and the `manifest_end` of its head."""
    return end + sum(int(section.compressed_bytes) for part in manifest.hosts for section in part.sections)


def read(data: bytes) -> Contents:
    """Unpack a file; one that was cut or changed gives what is whole and says what is lost.

    Raises NotASnapshotError, TooNewError, and DamagedError when not even the manifest can be read.
    """
    manifest = read_manifest(data)
    offset = manifest_end(data)
    hosts = []
    lost = []
    for part in manifest.hosts:
        end = offset + sum(int(section.compressed_bytes) for section in part.sections)
        snapshot, damaged = read_host(part, data[offset:end])
        hosts.append(snapshot)
        lost += damaged
        offset = end
    if len(data) > offset:
        lost.append(BEHIND)
    return Contents(manifest=manifest, hosts=tuple(hosts), lost=tuple(lost))


def read_host(
    part: file_pb2.HostPart, sections: bytes, without: Collection[str] = ()
) -> tuple[snapshot_pb2.Snapshot, list[str]]:
    """Unpack one host's sections; what is damaged of them is left out and said, a sentence each.

    Those called as in `without` are left out too, once their digest is right.
    """
    snapshot = snapshot_pb2.Snapshot(outcomes=part.outcomes)
    if part.HasField("meta"):
        snapshot.meta.CopyFrom(part.meta)
    if part.HasField("verdict"):
        snapshot.verdict.CopyFrom(part.verdict)
    decompressor = zstandard.ZstdDecompressor()
    lost = []
    offset = 0
    for section in part.sections:
        frame = sections[offset : offset + int(section.compressed_bytes)]
        offset += int(section.compressed_bytes)
        try:
            _check(section, frame)
            if section.name not in without:
                snapshot.MergeFrom(_unpack(section, frame, decompressor))
        except (_LostError, MemoryError, SystemError) as error:
            # protobuf ends a copy without memory with a SystemError.
            why = error if isinstance(error, _LostError) else "there is not enough memory for it"
            lost.append(f"{part.meta.host or 'unnamed host'}: {section.name} ({section.items:,}) is lost: {why}")
    return snapshot, lost


class _LostError(Exception):
    """One section cannot be read; says why."""


def _message(snapshot: Snapshot | snapshot_pb2.Snapshot) -> snapshot_pb2.Snapshot:
    if isinstance(snapshot, snapshot_pb2.Snapshot):
        return snapshot
    return cast("snapshot_pb2.Snapshot", wire.to_message(snapshot))


def _split(message: snapshot_pb2.Snapshot) -> Iterator[tuple[str, int, bytes]]:
    """Give name, item count and bytes of each section, in field order."""
    for field, value in message.ListFields():
        if field.name in _IN_MANIFEST:
            continue
        part = snapshot_pb2.Snapshot()
        if field.message_type is not None and wire.is_repeated(field):
            getattr(part, field.name).MergeFrom(value)
            items = len(value)
        else:
            getattr(part, field.name).CopyFrom(value)
            items = 1
        yield field.name, items, part.SerializeToString(deterministic=True)
    rest = snapshot_pb2.Snapshot()
    rest.CopyFrom(message)
    for field in message.DESCRIPTOR.fields:
        rest.ClearField(field.name)  # type: ignore[arg-type]  # any field's name will do
    if rest.ByteSize():
        yield _UNKNOWN_FIELDS, 1, rest.SerializeToString(deterministic=True)


def _read_head(head: bytes) -> tuple[int, bytes]:
    """Give length and digest of the manifest."""
    if not head:
        raise NotASnapshotError("the file is empty", "a snapshot is made with: freezeframe snap")
    if head[: len(MAGIC)] != MAGIC[: len(head)]:
        raise NotASnapshotError("the file does not begin as a snapshot (.ffz) does", "give a file that snap wrote")
    if len(head) < HEAD_BYTES:
        raise DamagedError(f"the file is cut: {len(head)} bytes, and its head alone has {HEAD_BYTES}")
    _, version, length, digest = _HEAD.unpack_from(head)
    if version > FORMAT:
        raise TooNewError(version)
    if version != FORMAT:
        raise DamagedError(f"the file says format version {version}, which never was")
    if length > MAX_MANIFEST_BYTES:
        raise DamagedError(f"the head declares a manifest of {length:,} bytes, more than any has")
    return length, digest


def _is_size(value: float) -> bool:
    return 0 <= value <= MAX_SECTION_BYTES and value.is_integer()


def _check(section: file_pb2.Section, frame: bytes) -> None:
    if len(frame) < section.compressed_bytes:
        raise _LostError(f"the file is cut, {section.compressed_bytes - len(frame):,.0f} bytes of it are missing")
    if section.items > MAX_ITEMS:
        raise _LostError(f"more than {MAX_ITEMS:,} records are in no file of ours")
    if hashlib.sha256(frame).digest() != section.digest:
        raise _LostError("its bytes do not match their digest")


def _unpack(section: file_pb2.Section, frame: bytes, decompressor: zstandard.ZstdDecompressor) -> snapshot_pb2.Snapshot:
    try:
        # The frame's own word on its size comes first: the library allocates what the frame says.
        if zstandard.frame_content_size(frame) != section.bytes:
            raise _LostError("its frame and the manifest differ about its size")
        message = snapshot_pb2.Snapshot.FromString(decompressor.decompress(frame))
    except zstandard.ZstdError as error:
        raise _LostError(f"unpacking it: {error}") from error
    except DecodeError as error:
        raise _LostError(f"decoding it: {error}") from error
    for field, value in message.ListFields():
        if field.name != section.name:
            raise _LostError("it holds something else")
        if wire.is_repeated(field) and len(value) != section.items:
            raise _LostError(f"it holds {len(value):,} records, and the manifest says {section.items:,}")
    return message
