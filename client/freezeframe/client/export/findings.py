"""What stands of a snapshot."""

from __future__ import annotations

from collections.abc import Sequence

from freezeframe.v1 import snapshot_pb2, verdict_pb2


def standing(snapshot: snapshot_pb2.Snapshot) -> Sequence[verdict_pb2.Verdict]:
    """Every verdict that stands, the principal one first."""
    if snapshot.findings:
        return snapshot.findings
    return (snapshot.verdict,) if snapshot.HasField("verdict") else ()
