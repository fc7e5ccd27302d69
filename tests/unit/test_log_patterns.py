from __future__ import annotations

import re
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.host.log_patterns import PATTERNS, Read, Stamp, latency_ms, line_time, read_lines

NOW = datetime(2026, 11, 30, 1, 40, 0, tzinfo=timezone.utc).timestamp()


def read(lines: list[bytes], *, written: float = NOW, zone_s: float = 0.0) -> Read:
    return read_lines(lines, 7, NOW, written=written, zone_s=zone_s)


def line(moment: str, request_id: str, end: str = "", rest: str = "", field: str = "uri") -> bytes:
    return (
        f"2026-11-30 {moment}  INFO http_request{{method=POST {field}=/v1/chat/completions?key=secret version=HTTP/1.1 "
        f'module="smg" request_id="{request_id}"{rest}}}: smg::request: src/middleware.rs:310: '
        f"{end or 'started processing request'}"
    ).encode()


def test_a_started_request_without_end_is_in_flight_with_its_age() -> None:
    said = read([line("01:39:00", "a"), line("01:39:10", "b", field="path")])
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
    (request,) = read([line("01:39:00", "a"), done]).requests
    assert (request.finished, request.latency_ms, request.status) == (True, 264_599.869, 200)


def test_the_same_id_again_is_another_request() -> None:
    lines = [
        line("01:39:00", "a"),
        line("01:39:01", "a", "finished processing request", " status_code=200 latency=1000"),
        line("01:39:02", "a"),
    ]
    assert [(r.request_id, r.finished, r.age_ms) for r in read(lines).requests] == [("a", False, 58_000.0)]


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
        (b"2026-11-30 01:40:00 INFO x", Stamp(NOW, local=False)),
        (b"2026-11-30T01:40:00.250Z INFO x", Stamp(NOW + 0.25, local=False)),
        (b"[2026-11-30 01:40:00 TP0] Decode batch", Stamp(NOW, local=True)),
        (b"[2026-11-30 01:40:00.500 DP0 TP0] Decode batch", Stamp(NOW + 0.5, local=True)),
        (b"INFO 11-30 01:40:00 [loggers.py:335] Engine", Stamp(NOW, local=True)),
        (b"(EngineCore_DP0 pid=31) WARNING 11-30 01:40:00 [core.py:1]", Stamp(NOW, local=True)),
        (b"INFO 12-31 01:40:00 [loggers.py:335] Engine", Stamp(NOW - (365 - 31) * 86400, local=True)),
        (b"2026-13-30 01:40:00", None),
        (b"INFO 13-30 01:40:00 [x", None),
        (b"INFO", None),
    ],
)
def test_line_time(text: bytes, found: Stamp | None) -> None:
    assert line_time(text, NOW) == found


@pytest.mark.parametrize(("stamp", "zone_s"), [(b"03:39:30", 7200.0), (b"01:39:30", 7200.0), (b"01:39:30", 0.0)])
def test_local_times_are_of_this_hosts_zone_or_utc_whichever_fits_the_file(stamp: bytes, zone_s: float) -> None:
    lines = [b"[2026-11-30 %b] Decode batch, #running-req: 3, #queue-req: 5" % stamp, b"no time"]
    (batch,) = read(lines, written=NOW - 20, zone_s=zone_s).findings
    assert (batch.pattern, batch.last_age_ms) == ("engine_batch", 30_000.0)
    # A router writes UTC, whatever the zone.
    assert read([line("01:39:00", "a")], zone_s=zone_s).requests[0].age_ms == 60_000.0


OLD = "http_request{{method=GET uri=/v1/x version=HTTP/1.1}}:http_request{{method=GET uri=/v1/x version=HTTP/1.1 {}}}: "
VERSIONS = (
    # Started, ended, latency in milliseconds, status: as each version of the router writes them.
    (OLD.format("request_id=r-1") + "src/middleware.rs:119: started processing request",
     OLD.format("request_id=r-1 status=503 Service Unavailable latency=151.345µs")
     + "src/middleware.rs:159: request failed with server error", 0.151345, 503),
    (('http_request{method=GET uri=/v1/x version=HTTP/1.1 request_id="r-1"}: sglang_router_rs::request: '
     "src/middleware.rs:217: started processing request"),
     ('http_request{method=GET uri=/v1/x version=HTTP/1.1 request_id="r-1" status_code=200 latency="2.003366767s"}: '
     "sglang_router_rs::response: src/middleware.rs:259: finished processing request"), 2003.366767, 200),
    (('http_request{method=GET uri=/v1/x version=HTTP/1.1 module="sglang::router_rs" request_id="r-1"}: '
     "sgl_model_gateway::request: …/src/middleware.rs:311: started processing request"),
     ('http_request{method=GET uri=/v1/x version=HTTP/1.1 module="sglang::router_rs" request_id="r-1" status_code=408 '
     "latency=258144}: sgl_model_gateway::response: …/src/middleware.rs:352: request failed with client error"),
     258.144, 408),
    (('http_request{method=GET path=/v1/x version=HTTP/1.1 module="smg" request_id="r-1"}: smg::request: '
     "model_gateway/src/middleware/logging.rs:170: started processing request"),
     ('http_request{method=GET path=/v1/x version=HTTP/1.1 module="smg" request_id="r-1" status_code=200 '
     "latency=2002310}: smg::response: model_gateway/src/middleware/logging.rs:227: finished processing request"),
     2002.31, 200),
)  # fmt: skip


@pytest.mark.parametrize(("started", "ended", "latency", "status"), VERSIONS)
def test_each_version_of_the_router(started: str, ended: str, latency: float, status: int) -> None:
    first = f"2026-11-30 01:39:00  INFO {started}".encode()
    (request,) = read([first]).requests
    assert (request.request_id, request.method, request.path) == ("r-1", "GET", "/v1/x")
    assert (request.finished, request.age_ms, request.latency_ms) == (False, 60_000.0, None)
    (request,) = read([first, f"2026-11-30 01:39:20 ERROR {ended}".encode()]).requests
    assert (request.request_id, request.finished, request.status, request.age_ms) == ("r-1", True, status, 60_000.0)
    assert request.latency_ms == pytest.approx(latency)


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
    ((b"[2026-11-30 01:40:00 TP0] Prefill batch [1], #new-seq: 1, #running-req: 2, #queue-req: 31, #bootstrap-req: 30, "
     b"#inflight-req: 1, cuda graph: False"), "engine_batch",
     {"batch": "Prefill", "running": "2", "queue": "31", "bootstrap": "30", "inflight": "1"}),
    (b"(APIServer pid=3) INFO 11-30 01:57:10 [loggers.py:335] Engine 000: Running: 32 reqs, Waiting: 72 reqs, KV",
     "vllm_stats", {"running": "32", "waiting": "72"}),
    (b"http_request{request_id=a status_code=503 latency=1}: x: request failed with server error",
     "router_server_error", {"status": "503"}),
    (b"Attempting to reconnect to 127.0.0.1:8998...", "bootstrap_reconnect", {}),
    (b"RuntimeError: secret detail", "traceback", {"exception": "RuntimeError"}),
    (b"CUDA error: an illegal memory access", "cuda_error", {"error": "an illegal memory access"}),
)  # fmt: skip


@pytest.mark.parametrize(("text", "name", "captured"), SAYS)
def test_findings_keep_what_was_captured_and_never_the_line(text: bytes, name: str, captured: dict[str, str]) -> None:
    findings = {each.pattern: each for each in read([text, text]).findings}
    assert (findings[name].count, dict(findings[name].captured)) == (2, captured)
    assert "secret" not in repr(findings)


def test_pattern_names_are_stable_names() -> None:
    names = [pattern.name for pattern in PATTERNS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z_]+", name) for name in names)


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_are_read_without_an_error(lines: list[bytes]) -> None:
    for request in read(lines).requests:
        assert request.request_id.isprintable()


PIECES = (
    b"http_request{", b"}", b'request_id="', b'"', b"2026-11-30 01:39:00", b"latency=", b"9" * 40, b" ",
    b"started processing request", b"finished processing request",
)  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=14))
def test_broken_router_lines_are_read_without_an_error(pieces: list[bytes]) -> None:
    read([b"".join(pieces)])
