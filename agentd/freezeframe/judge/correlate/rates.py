"""How much a client got of late, from the recorder's history."""

from __future__ import annotations

import math

from freezeframe.judge.correlate.facts import Client
from freezeframe.judge.model import Series, Snapshot


def recent_rate(snapshot: Snapshot, client: Client, seconds: int, kind: str = "answer bytes") -> float | None:
    """Bytes per second towards a client over the last seconds; None where nobody watched for so long.

    Of "answer events": server-sent events per second, at least those that were written one by one.
    """
    history, recorder = snapshot.history, snapshot.recorder
    if history is None or recorder is None or recorder.armed_ms < seconds * 1000.0 or history.interval_ms <= 0:
        return None
    samples = max(1, round(seconds * 1000.0 / history.interval_ms))
    recent = [s.values[-samples:] for s in history.series if s.kind == kind and _is_towards(s, client)]
    return sum(value for values in recent for value in values if not math.isnan(value)) / samples


def _is_towards(series: Series, client: Client) -> bool:
    if client.pid is not None:
        return series.peer_pid == client.pid
    return series.peer_pid is None and series.subject == client.address
