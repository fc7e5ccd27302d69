from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from freezeframe.judge.model import History, RecorderState, Series
from freezeframe.judge.verdicts import conclude
from tests.support.scene import Scene


def rates(armed_ms: float, *series: Series) -> dict[str, tuple[float | None, float | None]]:
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    harness, stray = scene.client(), scene.client("stray.py")
    assert (router, engine.http, harness, stray) == (101, 102, 105, 106)
    scene.owed(harness, router, 3, age_ms=70_000)
    scene.owed("10.0.0.9", router, 1, age_ms=70_000)
    scene.streams(stray, engine)
    history = History(series=series, interval_ms=1000.0)
    judged = conclude(replace(scene.snapshot(), history=history, recorder=RecorderState(armed_ms=armed_ms))).verdict
    assert judged is not None
    return {each.client: (each.bytes_per_s_10s, each.bytes_per_s_60s) for each in judged.attribution}


def answers(*values: float, **of: Any) -> Series:
    return Series(kind="answer bytes", values=values, **of)


def test_bytes_of_the_last_seconds_by_process_and_by_address() -> None:
    found = rates(
        90_000.0,
        # Nothing for ten seconds; before that 600 bytes each second.
        answers(*[600.0] * 70, *[0.0] * 10, pid=101, peer_pid=105),
        answers(*[float("nan")] * 5, *[100.0] * 5, pid=102, peer_pid=106),
        answers(*[60.0] * 60, pid=101, subject="10.0.0.9"),
        # Its requests, and what the router gets, are not towards a client.
        Series(kind="request bytes", values=(1e9,), pid=101, peer_pid=105),
        answers(*[1e9] * 60, pid=102, peer_pid=101),
    )
    assert found == {
        "harness.py": (0.0, pytest.approx(500.0)),
        "stray.py": (50.0, pytest.approx(500.0 / 60)),
        "10.0.0.9": (60.0, 60.0),
    }


def test_nothing_is_claimed_of_time_before_the_recorder() -> None:
    found = rates(30_000.0, answers(*[60.0] * 30, pid=101, peer_pid=105))
    assert found["harness.py"] == (60.0, None)


def test_tokens_of_a_stream_are_its_events_where_no_counter_tells_them() -> None:
    def tokens(*series: Series) -> dict[str, float | None]:
        scene = Scene()
        router, engine = scene.router(), scene.engine()
        harness, stray = scene.client(), scene.client("stray.py")
        scene.owed(harness, router, 3, age_ms=70_000)
        scene.streams(stray, engine)
        history = History(series=series, interval_ms=1000.0)
        judged = conclude(replace(scene.snapshot(), history=history, recorder=RecorderState(armed_ms=90_000.0))).verdict
        assert judged is not None
        return {each.client: each.tokens_per_s for each in judged.attribution}

    def events(*values: float) -> Series:
        return Series(kind="answer events", values=values, pid=102, peer_pid=106)

    assert tokens(events(*[53.0] * 20)) == {"harness.py": None, "stray.py": 53.0}
    assert tokens(events(*[53.0] * 20, *[0.0] * 10)) == {"harness.py": None, "stray.py": None}
    assert tokens() == {"harness.py": None, "stray.py": None}
