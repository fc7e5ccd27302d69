"""Hosts of a fleet as they lie in files, read one after the other: hundreds of them are never in memory at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from freezeframe.judge import file
from freezeframe.judge.model import Snapshot
from freezeframe.judge.needed import UNREAD, Needed, needed
from freezeframe.v1 import file_pb2, snapshot_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """One host, and where its sections are."""

    part: file_pb2.HostPart
    # Path of the file, or the bytes of it.
    source: str | bytes
    # In the file, bytes.
    begin: int

    @property
    def size(self) -> int:
        """Bytes of its sections."""
        return sum(int(section.compressed_bytes) for section in self.part.sections)

    @property
    def light(self) -> snapshot_pb2.Snapshot:
        """Its meta, outcomes and verdict."""
        snapshot = snapshot_pb2.Snapshot(meta=self.part.meta, outcomes=self.part.outcomes)
        if self.part.HasField("verdict"):
            snapshot.verdict.CopyFrom(self.part.verdict)
        return snapshot

    def sections(self) -> bytes:
        """Its sections as they are. Raises OSError."""
        if isinstance(self.source, bytes):
            return self.source[self.begin : self.begin + self.size]
        with open(self.source, "rb") as source:
            source.seek(self.begin)
            return source.read(self.size)

    def read(self, lost: list[str], without: Collection[str] = ()) -> snapshot_pb2.Snapshot:
        """Unpack it, but for the sections called as in `without`. Raises OSError.

        What is damaged of all of them is added to `lost`, a sentence each, unless it is there.
        """
        snapshot, damaged = file.read_host(self.part, self.sections(), without)
        lost += (sentence for sentence in damaged if sentence not in lost)
        return snapshot


def hosts_of(manifest: file_pb2.Manifest, source: str | bytes, begin: int) -> list[Host]:
    """The hosts of a file whose head ends at `begin`."""
    hosts = []
    for part in manifest.hosts:
        hosts.append(Host(part=part, source=source, begin=begin))
        begin += hosts[-1].size
    return hosts


def open_head(path: str) -> tuple[file_pb2.Manifest, list[Host]]:
    """Read the head of a file alone. Raises OSError and FileFormatError."""
    with open(path, "rb") as source:
        head = source.read(file.HEAD_BYTES)
        begin = file.manifest_end(head)
        head += source.read(begin - len(head))
    manifest = file.read_manifest(head)
    return manifest, hosts_of(manifest, path, begin)


def needed_of(hosts: Iterable[Host], lost: list[str]) -> Iterator[Needed]:
    """What is judged of each; nothing of what cannot be read here, as of a newer agent.

    What is damaged is added to `lost`, as `Host.read` does. Raises OSError.
    """
    for host in hosts:
        snapshot = host.read(lost, UNREAD)
        try:
            found = needed(snapshot)
        except Exception:  # noqa: BLE001 - the other hosts are judged all the same
            found = Needed(snapshot=Snapshot())
        yield found
