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


def test_what_the_sockets_saw_and_the_recorder_did_not_yet_is_no_zero() -> None:
    assert rates(90_000.0)["stray.py"] == (None, None)
    assert rates(90_000.0)["harness.py"] == (0.0, 0.0)


def token_rates(*, engine_wrote: float, router_wrote: list[float]) -> dict[str, tuple[float | None, float | None]]:
    """Of a client at the router and of one at the engine, which gets 10 a second."""
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    near, far = scene.client("near.py"), scene.client("far.py")
    scene.streams(near, engine)
    scene.streams(far, router, 2)
    scene.streams(router, engine, 2)
    series = [
        events_of(engine.http, near, [10.0, 11.0, 9.0, 10.0] * 3),
        events_of(engine.http, router, [engine_wrote] * 12),
        events_of(router, far, router_wrote),
    ]
    history = History(series=tuple(series), interval_ms=1000.0)
    judged = conclude(replace(scene.snapshot(), history=history, recorder=RecorderState(armed_ms=90_000.0))).verdict
    assert judged is not None
    return {each.client: (each.tokens_per_s, each.tokens_per_s_error) for each in judged.attribution}


def events_of(server: int, client: int, values: list[float]) -> Series:
    return Series(kind="answer events", values=tuple(values), pid=server, peer_pid=client)


def test_tokens_with_their_error() -> None:
    found = token_rates(engine_wrote=40.0, router_wrote=[38.0, 40.0, 42.0, 40.0] * 3)
    # Twice the standard error of the samples, and an event at each end of the time.
    assert found["near.py"] == (pytest.approx(10.0, abs=0.2), pytest.approx(1.1, abs=0.1))
    assert found["far.py"] == (pytest.approx(40.0, abs=0.4), pytest.approx(2.2, abs=0.2))


def test_events_that_a_router_wrote_together_are_half_counted_and_half_in_doubt() -> None:
    found = token_rates(engine_wrote=50.0, router_wrote=[38.0, 40.0, 42.0, 40.0] * 3)
    assert found["far.py"] == (pytest.approx(45.0, abs=0.5), pytest.approx(7.2, abs=0.4))
    assert found["near.py"][0] == pytest.approx(10.0, abs=0.2)


def test_a_rate_that_was_hardly_sampled_may_be_a_fifth_off() -> None:
    found = token_rates(engine_wrote=40.0, router_wrote=[40.0] * 12)
    assert found["far.py"] == (40.0, pytest.approx(40.0 * 0.2 + 0.4))


def test_tokens_by_counters_may_be_off_by_one_step_of_them() -> None:
    scene = Scene()
    _, engine = scene.router(), scene.engine()
    scene.streams(scene.client(), engine, 3)
    scene.gauges(engine, running=3, tokens=120)
    (row,) = scene.verdict().attribution
    assert (row.tokens_per_s, row.tokens_per_s_error) == (120.0, 40 * 3)
