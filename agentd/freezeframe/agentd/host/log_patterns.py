"""What log lines of routers and engines say: requests that began and never ended, and findings by pattern. Pure.

Router lines are those of sglang-router 0.1.9 to 0.3.2 and of smg: UTC time, level, a span `http_request{...}`, a
message. A finding keeps what its pattern's groups captured, never the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from freezeframe.agentd.host.text import escape
from freezeframe.judge.model import LogFinding, LogRequest

_TIME = re.compile(rb"^\[?(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(\.\d{1,9})?")
_SPAN = re.compile(rb"http_request\{([^}]*)\}")
_FIELD = re.compile(rb'(\w+)=(?:"([^"]*)"|([^\s}]*))')
_STARTED = b"started processing request"
_ENDS = (b"finished processing request", b"request failed with client error", b"request failed with server error")
_SECONDS = re.compile(rb"([\d.]+)(s|ms|\xc2\xb5s|us)")
_UNITS = {b"s": 1000.0, b"ms": 1.0, b"\xc2\xb5s": 0.001, b"us": 0.001}
# Kept of the requests that ended: the slowest.
_SLOWEST = 20
_UNFINISHED = 2000


@dataclass(frozen=True, slots=True)
class Pattern:
    """One thing that a log may say."""

    name: str
    meaning: str
    expression: re.Pattern[bytes]


def _pattern(name: str, meaning: str, expression: bytes) -> Pattern:
    return Pattern(name, meaning, re.compile(expression))


PATTERNS: tuple[Pattern, ...] = (
    _pattern("router_queue_full", "the limiter is saturated: 429", rb"queue is full|queuing is disabled"),
    _pattern(
        "router_queue_timeout",
        "requests gave up in the limiter's queue: 408",
        rb"timed out in queue|waiting for token|queue returned error|admission_queue_timeout",
    ),
    _pattern(
        "router_no_pair",
        "breaker or health checks took every worker out",
        rb"Failed to select PD pair|[Nn]o available (?P<kind>\w+)? ?(?:workers?|servers?)|circuits open or unhealthy",
    ),
    _pattern(
        "router_breaker",
        "a circuit breaker changed its state",
        rb"[Cc]ircuit breaker state transition.*?from[=: ]+\"?(?P<from>\w+).*?to[=: ]+\"?(?P<to>\w+)",
    ),
    _pattern(
        "router_health_check_failed", "a health check failed", rb"HTTP health check (?:failed|returned non-success)"
    ),
    _pattern(
        "router_prefill_failed",
        "the prefill leg failed",
        rb"Prefill server (?:failed|returned error)(?:.*?status[=: ]+\"?(?P<status>\d{3}))?",
    ),
    _pattern(
        "router_decode_failed",
        "the decode leg failed",
        rb"Decode (?:server returned error|request failed)(?:.*?status[=: ]+\"?(?P<status>\d{3}))?",
    ),
    _pattern("router_stream_error", "a stream from decode broke", rb"Stream error from decode"),
    _pattern("router_send_failed", "a request could not be sent to a worker", rb"Failed to send typed request"),
    _pattern("panicked", "a thread panicked", rb"thread '(?P<thread>[\w.: -]{1,40})' .{0,40}panicked|panicked at "),
    _pattern(
        "engine_no_answer_from_detokenizer",
        "the health check got no answer through scheduler and detokenizer",
        rb"couldn't get a response from detokenizer for last (?P<seconds>\d+) seconds",
    ),
    _pattern("engine_watchdog", "the engine's watchdog fired", rb"[Ww]atchdog (?:timeout|triggered)|watchdog_timeout"),
    _pattern(
        "vllm_no_broadcast_block",
        "a vLLM worker gave no answer for a minute",
        rb"No available shared memory broadcast block found in (?P<seconds>\d+) second",
    ),
    _pattern("bootstrap_timeout", "prefill and decode did not find each other", rb"(?i)bootstrap.{0,60}tim(?:ed )?out"),
    _pattern("nccl_error", "NCCL failed", rb"NCCL (?:error|WARN)|ncclSystemError|ncclUnhandledCudaError"),
    _pattern("cuda_error", "CUDA failed", rb"CUDA error: (?P<error>[a-z ]{1,60})|CUDA out of memory"),
    _pattern("traceback", "a Python traceback", rb"^(?:\w+\.)*(?P<exception>[A-Z]\w{1,60}(?:Error|Exception))(?::|$)"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What the lines of one log say."""

    requests: tuple[LogRequest, ...]
    findings: tuple[LogFinding, ...]
    # Age of the oldest line with a time, milliseconds.
    covers_ms: float | None


@dataclass(slots=True)
class _Finding:
    pattern: Pattern
    count: int = 0
    last: float | None = None
    captured: tuple[tuple[str, str], ...] = ()


def read_lines(lines: Iterable[bytes], pid: int, now: float) -> Read:
    """Read the lines of one log, oldest first; `now` in seconds since the epoch."""
    started: dict[str, list[tuple[float, str, str]]] = {}
    ended: list[LogRequest] = []
    findings: dict[str, _Finding] = {}
    oldest: float | None = None
    clock: float | None = None
    for line in lines:
        moment = line_time(line)
        if moment is not None:
            clock = moment
            oldest = moment if oldest is None else oldest
        _match_findings(line, clock, findings)
        span = _SPAN.search(line)
        if span is None or moment is None:
            continue
        fields = {name: quoted or bare for name, quoted, bare in _FIELD.findall(span[1])}
        request_id = escape(fields.get(b"request_id", b""), 200)
        if not request_id:
            continue
        method = escape(fields.get(b"method", b""), 16)
        path = escape((fields.get(b"uri") or fields.get(b"path") or b"").partition(b"?")[0], 200)
        if _STARTED in line:
            started.setdefault(request_id, []).append((moment, method, path))
        elif any(end in line for end in _ENDS):
            earlier = started.get(request_id)
            if earlier:
                earlier.pop()
            ended.append(
                LogRequest(
                    pid=pid,
                    request_id=request_id,
                    method=method,
                    path=path,
                    age_ms=_age(moment, now),
                    finished=True,
                    latency_ms=latency_ms(fields.get(b"latency", b"")),
                    status=_number(fields.get(b"status_code") or fields.get(b"status", b"")[:3]),
                )
            )
    unfinished = [
        LogRequest(pid=pid, request_id=request_id, method=method, path=path, age_ms=_age(moment, now))
        for request_id, several in started.items()
        for moment, method, path in several
    ]
    unfinished.sort(key=lambda request: -request.age_ms)
    ended.sort(key=lambda request: -(request.latency_ms or 0.0))
    return Read(
        requests=(*unfinished[:_UNFINISHED], *ended[:_SLOWEST]),
        findings=tuple(
            LogFinding(
                pid=pid,
                pattern=found.pattern.name,
                meaning=found.pattern.meaning,
                count=found.count,
                last_age_ms=None if found.last is None else _age(found.last, now),
                captured=found.captured,
            )
            for found in findings.values()
        ),
        covers_ms=None if oldest is None else _age(oldest, now),
    )


def _match_findings(line: bytes, clock: float | None, findings: dict[str, _Finding]) -> None:
    for pattern in PATTERNS:
        matched = pattern.expression.search(line)
        if matched is None:
            continue
        found = findings.setdefault(pattern.name, _Finding(pattern))
        found.count += 1
        found.last = clock
        found.captured = tuple(
            (name, escape(value, 100)) for name, value in sorted(matched.groupdict().items()) if value
        )


def line_time(line: bytes) -> float | None:
    """Time at the beginning of a line, seconds since the epoch, UTC; None when there is none."""
    found = _TIME.match(line.lstrip())
    if found is None:
        return None
    try:
        moment = datetime.fromisoformat(f"{found[1].decode()}T{found[2].decode()}+00:00")
    except ValueError:
        return None
    return moment.timestamp() + (float(found[3]) if found[3] else 0.0)


def latency_ms(text: bytes) -> float | None:
    """Latency of a router's line, milliseconds: "2.003s" with its unit, or a whole number of microseconds."""
    if text.isdigit():
        return int(text[:18]) / 1000.0
    found = _SECONDS.fullmatch(text)
    if found is None:
        return None
    try:
        return float(found[1]) * _UNITS[found[2]]
    except ValueError:
        return None


def _age(moment: float, now: float) -> float:
    return max(0.0, (now - moment) * 1000.0)


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() and len(text) <= 3 else 0  # noqa: PLR2004 - an HTTP status
