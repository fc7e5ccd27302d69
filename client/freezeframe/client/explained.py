"""A snapshot judged again, for who asks why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from freezeframe.judge.explain import Explanation, explain, explain_fleet
from freezeframe.judge.fleet import Fleet
from freezeframe.judge.model import Evidence
from freezeframe.judge.needed import needed
from freezeframe.v1 import snapshot_pb2


def explanation(snapshot: snapshot_pb2.Snapshot) -> Explanation | None:
    """Explain the verdict; None where the snapshot cannot be judged here: a newer agent's, or nobody's."""
    try:
        judged = needed(snapshot)
        told = explain(judged.snapshot)
    except Exception:  # noqa: BLE001 - a file can come from anybody, and its verdict is shown all the same
        return None

    def own(several: Iterable[Evidence]) -> tuple[Evidence, ...]:
        """Lead into the whole snapshot."""
        return tuple(replace(each, ref=judged.own(each.ref)) for each in several)

    fired = (
        replace(
            verdict,
            evidence=own(verdict.evidence),
            ruled_out=tuple(replace(each, evidence=own(each.evidence)) for each in verdict.ruled_out),
        )
        for verdict in told.fired
    )
    return replace(told, facts=own(told.facts), fired=tuple(fired))


def explanation_of(fleet: Fleet) -> Explanation | None:
    """Explain the verdict over several hosts, as `explanation` does that of one."""
    try:
        return explain_fleet(fleet)
    except Exception:  # noqa: BLE001 - as above
        return None
