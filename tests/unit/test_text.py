from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.host.text import escape


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"sglang::router", "sglang::router"),
        (b"a\x1b[31mb", "a\\x1b[31mb"),
        (b"a\nb\tc\0d", "a\\x0ab\\x09c\\x00d"),
        (b"\xff\xfe", "\\xff\\xfe"),
        ("größe".encode(), "größe"),
        ("x\u202ey".encode(), "x\\u202ey"),
        ("x\u2028y\U000e0001z".encode(), "x\\u2028y\\U000e0001z"),
        (b"\x7f\xc2\x85", "\\x7f\\x85"),
    ],
)
def test_escape(data: bytes, text: str) -> None:
    assert escape(data) == text


def test_a_long_text_is_cut_and_says_so() -> None:
    assert escape(b"a" * 100_000, limit=10) == "a" * 10 + "…"


@given(st.binary(max_size=300))
def test_nothing_hidden_survives(data: bytes) -> None:
    text = escape(data)
    assert text.isprintable()
    text.encode("utf-8")
