"""Conditions, triggers and times: exact values, no clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.schedules import conditions, times
from freezeframe.agentd.schedules.checks import refusal, trigger_of
from freezeframe.agentd.schedules.conditions import ConditionError
from freezeframe.agentd.schedules.schedule import Schedule
from freezeframe.agentd.schedules.triggers import State, Trigger, step


@pytest.mark.parametrize(
    ("text", "expression", "hold_s"),
    [
        ("stuck-for=30s", "longest_wait_s >= 30", 0.0),
        (" stuck-for = 500ms ", "longest_wait_s >= 0.5", 0.0),
        ("no-tokens-for=2m", "silent_s >= 120", 0.0),
        ("backlog", "backlog >= 1", 3.0),
        ("backlog=10", "backlog >= 10", 3.0),
        ("backlog == 10", "backlog == 10", 0.0),
        ("stuck-for=1234567s", "longest_wait_s >= 1234567", 0.0),
        ("xid", "xids > 0", 0.0),
        ("process-stopped", "stopped > 0", 3.0),
        ("process-exit", "exits > 0", 0.0),
        ("psi=memory>40", "psi_memory > 40", 10.0),
        ("requests > 50 and answer_bytes == 0", "requests > 50 and answer_bytes == 0", 0.0),
        ("max(silent_s, longest_wait_s) / 2 >= 3", "max(silent_s, longest_wait_s) / 2 >= 3", 0.0),
    ],
)
def test_what_a_condition_means(text: str, expression: str, hold_s: float) -> None:
    condition = conditions.parse(text)
    assert (condition.expression, condition.hold_s) == (expression, hold_s)


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", "a condition has 1 to 500 characters, this one 0"),
        ("requests > 1" + " " * 600 + "and requests > 2", "a condition has 1 to 500 characters, this one 628"),
        ("stuck-for", "stuck-for: stuck-for needs a time"),
        ("stuck-for=soon", "stuck-for=soon: stuck-for needs a time"),
        ("psi=disk>3", "psi=disk>3: psi needs a resource and a percentage"),
        ("backlog=0", "backlog=0: backlog takes a number of connections"),
        ("xid=79", "xid=79: xid takes no value"),
        ("stuckfor > 3", "'stuckfor > 3': there is no 'stuckfor'"),
        ("__import__('os')", "\"__import__('os')\": there is no '__import__'"),
        ("requests ** 9 > 1", "'requests ** 9 > 1': Pow is not allowed in a condition"),
        ("requests.real > 1", "'requests.real > 1': Attribute is not allowed in a condition"),
        ("requests > 'a'", "\"requests > 'a'\": only numbers are values"),
        ("requests > True", "'requests > True': only numbers are values"),
        ("max(requests, key=abs) > 1", "'max(requests, key=abs) > 1': only abs, min and max are called"),
        ("stuck-for=３０s", "stuck-for=３０s: stuck-for needs a time"),  # noqa: RUF001 - of a wide font
        ("psi=memory>100", "psi=memory>100: psi needs a resource and a percentage"),
        ("min(requests) > 1", "'min(requests) > 1': min takes two values or more"),
        ("abs(requests, 1) > 1", "'abs(requests, 1) > 1': abs takes one value"),
        ("requests > 1e999", "'requests > 1e999': numbers go up to 1e+18"),
        ("requests > 9" + "9" * 400, f"{'requests > ' + '9' * 69!r}: numbers go up to 1e+18"),
        ("-" * 480 + "requests > 0", f"{'-' * 80!r} is nested too deeply"),
        ("1 > 0", "'1 > 0' asks for nothing that changes"),
        ("requests >", "'requests >' is neither a known condition nor an expression"),
        ("-" * 40 + "requests > 0", f"{'-' * 40 + 'requests > 0'!r} is nested too deeply"),
    ],
)
def test_what_is_no_condition(text: str, detail: str) -> None:
    with pytest.raises(ConditionError) as caught:
        conditions.parse(text)
    assert str(caught.value) == detail
    assert caught.value.hint


def test_a_condition_with_a_value_that_is_not_known_is_neither_true_nor_false() -> None:
    assert conditions.holds("requests > 1", {"requests": 2.0}) is True
    assert conditions.holds("requests > 1", {"requests": 1.0}) is False
    assert conditions.holds("requests > 1", {}) is None
    assert conditions.holds("requests > 1", {"requests": float("nan")}) is None
    assert conditions.holds("1 / requests > 1", {"requests": 0.0}) is None


@given(st.text(alphabet="requests_longwait0123456789.()<>=!*/+-, andornot'\"[]{}:@%", max_size=60))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        condition = conditions.parse(text)
    except ConditionError:
        return
    assert conditions.holds(condition.expression, dict.fromkeys(conditions.NAMES, 3.0)) in (True, False, None)


def seconds(trigger: Trigger, *values: float | None) -> Iterator[tuple[int, bool]]:
    """Each second's `requests`, None = not known; gives the seconds and whether it fired."""
    state = State()
    for now, value in enumerate(values):
        state, fired = step(trigger, state, {} if value is None else {"requests": value}, float(now))
        yield now, fired


def fired(trigger: Trigger, *values: float | None) -> list[int]:
    return [now for now, fires in seconds(trigger, *values) if fires]


def test_a_condition_has_to_hold() -> None:
    trigger = Trigger(expression="requests > 5", hold_s=2.0, clear_s=0.0, cool_down_s=0.0)
    assert fired(trigger, 6, 6, 5, 6, 6, 6, 6) == [5]
    assert fired(trigger, 6, None, 6, 6) == []
    assert fired(replace(trigger, hold_s=0.0), 5, 6, 6) == [1]


def test_it_fires_once_until_it_was_clear_for_long_enough() -> None:
    trigger = Trigger(expression="requests > 5", clear_s=2.0, cool_down_s=0.0)
    assert fired(trigger, *[6] * 100) == [0]
    # Around the threshold it does not fire again and again.
    assert fired(trigger, *[6, 5] * 50) == [0]
    assert fired(trigger, 6, 5, 5, 5, 6) == [0, 4]
    # A second that is not known is not clear.
    assert fired(trigger, 6, 5, None, 5, 6) == [0]


def test_it_cools_down() -> None:
    trigger = Trigger(expression="requests > 5", clear_s=0.0, cool_down_s=6.0)
    assert fired(trigger, 6, 0, 6, 0, 6, 6, 6, 6) == [0, 6]


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_intervals_count_from_the_last_run() -> None:
    hourly = Schedule(name="a", every_s=3600)
    assert times.following(hourly, 1000.0, None) == 4600.0
    assert times.following(hourly, 1000.0, 900.0) == 4500.0
    assert times.following(hourly, 4500.0, 900.0) == 8100.0
    assert times.following(hourly, 100_000.0, 900.0) == 900.0 + 28 * 3600
    # The clock was set back since.
    assert times.following(hourly, 1000.0, 5000.0) == 4600.0


def test_cron_is_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        nightly = Schedule(name="a", cron="30 2 * * *")
        assert times.following(nightly, at("2026-11-30T02:29:59"), None) == at("2026-11-30T02:30:00")
        assert times.following(nightly, at("2026-11-30T02:30:00"), None) == at("2026-12-01T02:30:00")
        # Clocks go back at 3:00: 2:30 comes twice and counts once.
        first = times.following(nightly, at("2026-10-25T00:00:00"), None)
        assert times.following(nightly, first, None) == at("2026-10-26T02:30:00")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_missed_times() -> None:
    skip = Schedule(name="a", every_s=3600)
    once = replace(skip, missed="once")
    assert times.first_due(skip, 10_000.0, 1000.0) == 1000.0 + 3 * 3600
    assert times.first_due(once, 10_000.0, 1000.0) == 10_000.0
    assert times.first_due(once, 4000.0, 1000.0) == 4600.0
    # It has never run: nothing was missed.
    assert times.first_due(once, 4000.0, None) == 7600.0


@pytest.mark.parametrize(
    ("schedule", "detail"),
    [
        (
            Schedule(name="../x", every_s=60),
            "name '../x' must be up to 64 letters, digits, dots, dashes or underscores",
        ),
        (Schedule(name="a"), "exactly one of every, cron and when is needed"),
        (Schedule(name="a", every_s=60, when="xid"), "exactly one of every, cron and when is needed"),
        (Schedule(name="a", every_s=0.5), "every_s must be 1 or more"),
        (Schedule(name="a", every_s=float("nan")), "every_s must be a number from 0 to 31622400"),
        (Schedule(name="a", every_s=60, jitter_s=60), "jitter_s must be less than every_s"),
        (Schedule(name="a", every_s=60, missed="all"), "missed must be one of skip, once"),
        (Schedule(name="a", every_s=60, window_s=6), "deadline_s must be more than window_s"),
        (Schedule(name="a", cron="61 * * * *"), "cron '61 * * * *': Bad minute"),
        (Schedule(name="a", cron="0 0 31 2 *"), "cron '0 0 31 2 *': Bad day-of-month"),
        (Schedule(name="a", cron="* * * * * *"), "cron '* * * * * *': it does not have five fields"),
        (Schedule(name="a", cron="0" * 5000 + " * * * *"), "cron must have at most 200 characters"),
        (Schedule(name="a", every_s=60, only=("x",), skip=("x", "y")), "only and skip leave no collector"),
        (Schedule(name="a", when="stuck"), "when: 'stuck': there is no 'stuck'"),
    ],
)
def test_what_is_no_schedule(schedule: Schedule, detail: str) -> None:
    assert refusal(schedule)[0] == detail


def test_the_schedule_may_say_how_long_a_condition_has_to_hold() -> None:
    assert trigger_of(Schedule(name="a", when="backlog")).hold_s == 3.0
    assert trigger_of(Schedule(name="a", when="backlog", hold_s=7)).hold_s == 7
