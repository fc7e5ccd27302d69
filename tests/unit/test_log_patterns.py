from __future__ import annotations

import re
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.host.log_patterns import PATTERNS, latency_ms, line_time, read_lines

NOW = datetime(2026, 11, 30, 1, 40, 0, tzinfo=timezone.utc).timestamp()


def line(moment: str, request_id: str, end: str = "", rest: str = "", field: str = "uri") -> bytes:
    return (
        f"2026-11-30 {moment}  INFO http_request{{method=POST {field}=/v1/chat/completions?key=secret version=HTTP/1.1 "
        f'module="smg" request_id="{request_id}"{rest}}}: smg::request: src/middleware.rs:310: '
        f"{end or 'started processing request'}"
    ).encode()


def test_a_started_request_without_end_is_in_flight_with_its_age() -> None:
    said = read_lines([line("01:39:00", "a"), line("01:39:10", "b", field="path")], 7, NOW)
    assert [(r.request_id, r.age_ms, r.finished, r.method, r.path) for r in said.requests] == [
        ("a", 60_000.0, False, "POST", "/v1/chat/completions"),
        ("b", 50_000.0, False, "POST", "/v1/chat/completions"),
    ]
    assert said.covers_ms == 60_000.0


@pytest.mark.parametrize(
    "end", ["finished processing request", "request failed with client error", "request failed with server error"]
)
def test_an_ended_request_has_its_latency_in_milliseconds(end: str) -> None:
    done = line("01:39:30", "a", end, " status_code=200 latency=264599869")
    (request,) = read_lines([line("01:39:00", "a"), done], 7, NOW).requests
    assert (request.finished, request.latency_ms, request.status) == (True, 264_599.869, 200)


def test_the_same_id_again_is_another_request() -> None:
    lines = [
        line("01:39:00", "a"),
        line("01:39:01", "a", "finished processing request", " status_code=200 latency=1000"),
        line("01:39:02", "a"),
    ]
    assert [(r.request_id, r.finished, r.age_ms) for r in read_lines(lines, 7, NOW).requests] == [
        ("a", False, 58_000.0),
        ("a", True, 59_000.0),
    ]


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        (b"2002997", 2002.997), (b"2.003583613s", 2003.583613), (b"12.5ms", 12.5), (b"250\xc2\xb5s", 0.25),
        (b"", None), (b"x", None), (b"1.2.3s", None),
    ],
)  # fmt: skip
def test_latency_has_the_unit_of_its_version(text: bytes, milliseconds: float | None) -> None:
    assert latency_ms(text) == pytest.approx(milliseconds)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"2026-11-30 01:40:00 INFO x", NOW),
        (b"2026-11-30T01:40:00.250Z INFO x", NOW + 0.25),
        (b"[2026-11-30 01:40:00 TP0] Decode batch", NOW),
        (b"2026-13-30 01:40:00", None),
        (b"INFO", None),
    ],
)
def test_line_time(text: bytes, found: float | None) -> None:
    assert line_time(text) == found


SAYS = (
    (b"Request queue is full, returning 429", "router_queue_full", {}),
    (b"Request timed out in queue", "router_queue_timeout", {}),
    (b"Failed to select PD pair error=...", "router_no_pair", {}),
    (b"HTTP health check failed for http://h:1", "router_health_check_failed", {}),
    (b"Prefill server failed (CRITICAL) prefill_url=http://h:1 status=500", "router_prefill_failed", {"status": "500"}),
    (b"Decode server returned error status decode_url=http://h status=500", "router_decode_failed", {"status": "500"}),
    (b"thread 'tokio-runtime-w' panicked at src/x.rs", "panicked", {"thread": "tokio-runtime-w"}),
    (b"couldn't get a response from detokenizer for last 20 seconds", "engine_no_answer_from_detokenizer",
     {"seconds": "20"}),
    (b"No available shared memory broadcast block found in 60 seconds.", "vllm_no_broadcast_block", {"seconds": "60"}),
    (b"RuntimeError: secret detail", "traceback", {"exception": "RuntimeError"}),
    (b"CUDA error: an illegal memory access", "cuda_error", {"error": "an illegal memory access"}),
)  # fmt: skip


@pytest.mark.parametrize(("text", "name", "captured"), SAYS)
def test_findings_keep_what_was_captured_and_never_the_line(text: bytes, name: str, captured: dict[str, str]) -> None:
    findings = {each.pattern: each for each in read_lines([text, text], 7, NOW).findings}
    assert (findings[name].count, dict(findings[name].captured)) == (2, captured)
    assert "secret" not in repr(findings)


def test_pattern_names_are_stable_names() -> None:
    names = [pattern.name for pattern in PATTERNS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z_]+", name) for name in names)


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_are_read_without_an_error(lines: list[bytes]) -> None:
    for request in read_lines(lines, 7, NOW).requests:
        assert request.request_id.isprintable()


PIECES = (
    b"http_request{", b"}", b'request_id="', b'"', b"2026-11-30 01:39:00", b"latency=", b"9" * 40, b" ",
    b"started processing request", b"finished processing request",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_broken_router_lines_are_read_without_an_error(pieces: list[bytes]) -> None:
    read_lines([b"".join(pieces)], 7, NOW)
