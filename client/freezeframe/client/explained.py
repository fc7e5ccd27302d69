"""A snapshot judged again, for who asks why."""

from __future__ import annotations

from dataclasses import replace

from freezeframe.judge.explain import Explanation, explain
from freezeframe.judge.needed import needed
from freezeframe.v1 import snapshot_pb2


def explanation(snapshot: snapshot_pb2.Snapshot) -> Explanation | None:
    """Explain the verdict; None where the snapshot cannot be judged here: a newer agent's, or nobody's."""
    try:
        judged = needed(snapshot)
        told = explain(judged.snapshot)
        return replace(told, facts=tuple(replace(fact, ref=judged.own(fact.ref)) for fact in told.facts))
    except Exception:  # noqa: BLE001 - a file can come from anybody, and its verdict is shown all the same
        return None
