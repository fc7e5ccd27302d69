"""A snapshot judged again, for who asks why."""

from __future__ import annotations

from freezeframe.judge import wire
from freezeframe.judge.explain import Explanation, explain
from freezeframe.judge.model import Snapshot
from freezeframe.v1 import snapshot_pb2


def explanation(snapshot: snapshot_pb2.Snapshot) -> Explanation | None:
    """Explain the verdict; None where the snapshot cannot be judged here: a newer agent's, or nobody's."""
    try:
        return explain(wire.from_message(snapshot, Snapshot))
    except Exception:  # noqa: BLE001 - a file can come from anybody, and its verdict is shown all the same
        return None
