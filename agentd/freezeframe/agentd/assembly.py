"""What a capture hands on of all that was gathered, and the head of it. Pure, but for the chance in an id."""

from __future__ import annotations

import secrets
from collections.abc import Container
from dataclasses import replace
from datetime import datetime, timezone

from freezeframe.agentd.capture import CaptureSpec
from freezeframe.agentd.host import rfc3339
from freezeframe.judge.model import Meta, Snapshot


def about(snapshot: Snapshot, pids: Container[int | None]) -> Snapshot:
    """Leave what is about these processes, or about the host.

    The recorder sees every connection of the host; those of other processes are nobody's business here.
    """
    history, recorder = snapshot.history, snapshot.recorder
    return replace(
        snapshot,
        requests=tuple(each for each in snapshot.requests if each.pid in pids),
        history=history
        and replace(
            history,
            series=tuple(s for s in history.series if s.pid in pids or s.peer_pid in pids or not (s.pid or s.peer_pid)),
        ),
        recorder=recorder and replace(recorder, resting=tuple(end for end in recorder.resting if end.pid in pids)),
    )


def meta(identity: Meta, spec: CaptureSpec, *, started_s: float, boottime_s: float, duration_ms: float) -> Meta:
    """Head of a snapshot: what is the same for every one, what was asked for, and when.

    `started_s` is Unix time, `boottime_s` that of CLOCK_BOOTTIME at the same moment.
    """
    return replace(
        identity,
        snapshot_id=_snapshot_id(identity.host, started_s),
        started_at=rfc3339(started_s),
        duration_ms=duration_ms,
        trigger=spec.trigger,
        window_ms=spec.window_ms,
        boottime_ms=boottime_s * 1000.0,
        note=spec.note,
        client=str(spec.client_pid) if spec.client_pid is not None else spec.client_address,
        pids=spec.pids,
        schedule=spec.schedule,
        triggered=spec.triggered,
    )


def _snapshot_id(host: str, started_s: float) -> str:
    started = datetime.fromtimestamp(started_s, tz=timezone.utc)
    name = "".join(letter if letter.isascii() and (letter.isalnum() or letter == "-") else "-" for letter in host)
    return f"{name[:64] or 'host'}-{started:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
