"""One archive of a report: issue, page, stacks, the snapshot as JSON and as a file, and the digest of each. Pure."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence

from freezeframe.client.export import speedscope, stacks
from freezeframe.client.render import json as render_json
from freezeframe.judge import file
from freezeframe.v1 import file_pb2, snapshot_pb2

# What GitHub takes as an attachment.
MOST_BYTES = 25_000_000
_CUT_FIRST = ("snapshot.json", "stacks.speedscope.json", "profile.speedscope.json", "report.html", "snapshot.ffz")
# Tar's own blocks, and the manifest.
_AROUND = 20_000


def pack(
    snapshots: Sequence[snapshot_pb2.Snapshot],
    issue: bytes,
    page: bytes,
    remark: str,
    writer: str,
    *,
    fleet: file_pb2.Manifest | None = None,
) -> bytes:
    """Pack a .tgz of less than `MOST_BYTES`; what had no room is named in its manifest. Equal input, equal bytes.

    What the snapshot's file can give again goes first; that file can be too large by itself only where nobody could
    attach it either. `fleet` has the verdict over several hosts, and which brought nothing.
    """
    whole = file_pb2.Manifest() if fleet is None else fleet
    verdict = whole.verdict if whole.HasField("verdict") else None
    pieces = [render_json.stream(snapshot) for snapshot in snapshots]
    members = {
        "issue.md": issue,
        "report.html": page,
        "snapshot.ffz": file.write(snapshots, writer, verdict, whole.missing),
        **_stacks(snapshots),
        "snapshot.json": "".join(pieces[0] if len(pieces) == 1 else render_json.array(pieces)).encode(),
    }
    left_out: list[str] = []
    data = _archive(members, left_out, remark)
    for name in _CUT_FIRST:
        if len(data) + _AROUND <= MOST_BYTES:
            break
        if members.pop(name, None) is not None:
            left_out.append(name)
            data = _archive(members, left_out, remark)
    return data


def _stacks(snapshots: Sequence[snapshot_pb2.Snapshot]) -> dict[str, bytes]:
    """Give what there is for speedscope.app."""
    found = {"stacks.speedscope.json": stacks.instant(snapshots), "profile.speedscope.json": stacks.profile(snapshots)}
    return {name: "".join(speedscope.render(each)).encode() for name, each in found.items() if each.stacks}


def _archive(members: Mapping[str, bytes], left_out: Sequence[str], remark: str) -> bytes:
    manifest = {
        "remark": remark,
        "files": [
            {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in members.items()
        ],
        "left_out": [{"name": name, "because": f"over {MOST_BYTES} bytes in all"} for name in left_out],
    }
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", fileobj=packed, mode="wb", mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, data in {"manifest.json": (json.dumps(manifest, indent=1) + "\n").encode(), **members}.items():
            entry = tarfile.TarInfo(f"freezeframe-report/{name}")
            entry.size = len(data)
            entry.mode = 0o600
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
