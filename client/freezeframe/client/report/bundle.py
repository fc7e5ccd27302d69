"""One archive of a report: the issue, the snapshot as JSON and as a file, and the digest of each. Pure."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence

from freezeframe.client.render import json as render_json
from freezeframe.judge import file
from freezeframe.v1 import snapshot_pb2

# What GitHub takes as an attachment.
MOST_BYTES = 25_000_000
# Tar's own blocks, and the manifest.
_AROUND = 20_000


def pack(snapshots: Sequence[snapshot_pb2.Snapshot], issue: str, remark: str, writer: str) -> bytes:
    """Pack a .tgz of less than `MOST_BYTES`; what had no room is named in its manifest. Equal input, equal bytes.

    The snapshot's file can be too large by itself only where nobody could attach it either: it goes last.
    """
    pieces = [render_json.stream(snapshot) for snapshot in snapshots]
    members = {
        "issue.md": issue.encode("utf-8", "backslashreplace"),
        "snapshot.ffz": file.write(snapshots, writer),
        "snapshot.json": "".join(pieces[0] if len(pieces) == 1 else render_json.array(pieces)).encode(),
    }
    left_out: list[str] = []
    data = _archive(members, left_out, remark)
    for name in ("snapshot.json", "snapshot.ffz"):
        if len(data) + _AROUND <= MOST_BYTES:
            break
        del members[name]
        left_out.append(name)
        data = _archive(members, left_out, remark)
    return data


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
