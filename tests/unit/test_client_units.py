from __future__ import annotations

import pytest

from freezeframe.client.render import units
from freezeframe.client.render.guard import clean, clean_json, columns


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [
        (0, "0 ms"),
        (612.4, "612 ms"),
        (999.4, "999 ms"),
        (999.9, "1.0 s"),
        (1000, "1.0 s"),
        (264599.869, "264.6 s"),
        (600_000, "10 min 0 s"),
        (11_520_000, "3 h 12 min"),
        (187_200_000, "2 d 4 h"),
    ],
)
def test_age(milliseconds: float, said: str) -> None:
    assert units.age(milliseconds) == said


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [(5000, "5.0 s"), (264599.869, "264.6 s (4 min 24 s)"), (7_200_000, "7200.0 s (2 h 0 min)")],
)
def test_long_age(milliseconds: float, said: str) -> None:
    assert units.long_age(milliseconds) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0 B"), (999, "999 B"), (5123, "5.1 kB"), (20.3e6, "20.3 MB"), (1.1e12, "1.1 TB"), (5e15, "5000.0 TB")],
)
def test_size_and_rate(count: float, said: str) -> None:
    assert units.size(count) == said
    assert units.rate(count) == f"{said}/s"


def test_numbers_and_counts() -> None:
    assert units.number(53.2) == "53.2"
    assert units.number(1_234_567.0) == "1,234,567"
    assert units.number(float("nan")) == "nan"
    assert units.number(float("inf")) == "inf"
    assert units.count(1, "request") == "1 request"
    assert units.count(1200, "request") == "1,200 requests"


def test_the_guard_leaves_ordinary_text_of_any_language_alone() -> None:
    for text in ("plain", "naïve 名前 Ωμέγα", "emoji \U0001f600", "a\u00a0b"):
        assert clean(text) == text
        assert clean_json(text) == text


def test_the_guard_escapes_what_acts_or_hides() -> None:
    assert clean("a\nb\tc\x1b[31m\x7f\x85\u2028\u202e\ufeff\ud800") == (
        "a\\x0ab\\x09c\\x1b[31m\\x7f\\x85\\u2028\\u202e\\ufeff\\ud800"
    )


def test_columns_of_a_terminal() -> None:
    assert columns("abc") == 3
    assert columns("名前") == 4
    assert columns("e\u0301") == 1
