"""What log lines of routers and engines say: requests that began and never ended, and findings by pattern. Pure.

Router lines are those of sglang-router 0.1.9 to 0.3.2 and of smg: UTC time, level, a span `http_request{...}`, a
message. A request that was cancelled by its client leaves its started line alone, as one in flight does. A finding
keeps what its pattern's groups captured, never the line.

Routers write UTC. SGLang and vLLM write their own local time: it is taken for UTC or for the zone of this host,
whichever brings the last line nearer to the time at which the file was last written.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from freezeframe.agentd.host.text import escape
from freezeframe.judge.model import LogFinding, LogRequest

# A router's or SGLang's time, or vLLM's, which has no year.
_TIME = re.compile(
    rb"(?P<local>\[)?(?P<date>\d{4}-\d\d-\d\d)[ T](?P<time>\d\d:\d\d:\d\d)(?P<part>\.\d{1,9})?"
    rb"|(?:\([^)]{1,60}\) )?[A-Z]{4,8} (?P<day>\d\d-\d\d) (?P<hour>\d\d:\d\d:\d\d) \["
)
# The older routers write a span inside a span, with the id in the inner one.
_SPAN = re.compile(rb"http_request\{([^}]*)\}")
_DAY_S = 86400.0
# What a line that tells whole seconds may be ahead of its time.
_LINE_TIME_S = 1.0
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
    # One of these is in every line that matches: looked for first, since that is twenty times as fast.
    words: tuple[bytes, ...]
    meaning: str
    expression: re.Pattern[bytes]


def _pattern(name: str, words: tuple[bytes, ...], meaning: str, expression: bytes) -> Pattern:
    return Pattern(name, words, meaning, re.compile(expression))


PATTERNS: tuple[Pattern, ...] = (
    _pattern(
        "router_client_error",
        (b"failed with client error",),
        "requests were refused: 4xx",
        rb"status(?:_code)?=(?P<status>\d{3}).*request failed with client error",
    ),
    _pattern(
        "router_server_error",
        (b"failed with server error",),
        "requests failed: 5xx",
        rb"status(?:_code)?=(?P<status>\d{3}).*request failed with server error",
    ),
    _pattern(
        "router_queue_full",
        (
            b"queue is full",
            b"queuing is disabled",
        ),
        "the limiter is saturated: 429",
        rb"queue is full|queuing is disabled",
    ),
    _pattern(
        "router_queue_timeout",
        (
            b"timed out in queue",
            b"waiting for token",
            b"queue returned error",
            b"admission_queue_timeout",
        ),
        "requests gave up in the limiter's queue: 408",
        rb"timed out in queue|waiting for token|queue returned error|admission_queue_timeout",
    ),
    _pattern(
        "router_no_pair",
        (
            b"select PD pair",
            b"o available ",
            b"circuits open or unhealthy",
        ),
        "breaker or health checks took every worker out",
        rb"Failed to select PD pair|[Nn]o available (?P<kind>\w+)? ?(?:workers?|servers?)|circuits open or unhealthy",
    ),
    _pattern(
        "router_breaker",
        (b"ircuit breaker state transition",),
        "a circuit breaker changed its state",
        rb"[Cc]ircuit breaker state transition.*?from[=: ]+\"?(?P<from>\w+).*?to[=: ]+\"?(?P<to>\w+)",
    ),
    _pattern(
        "router_health_check_failed",
        (b"HTTP health check ",),
        "a health check failed",
        rb"HTTP health check (?:failed|returned non-success)",
    ),
    _pattern(
        "router_prefill_failed",
        (b"Prefill server ",),
        "the prefill leg failed",
        rb"Prefill server (?:failed|returned error)(?:.*?status[=: ]+\"?(?P<status>\d{3}))?",
    ),
    _pattern(
        "router_decode_failed",
        (
            b"Decode server ",
            b"Decode request ",
        ),
        "the decode leg failed",
        rb"Decode (?:server returned error|request failed)(?:.*?status[=: ]+\"?(?P<status>\d{3}))?",
    ),
    _pattern(
        "router_stream_error",
        (b"Stream error from decode",),
        "a stream from decode broke",
        rb"Stream error from decode",
    ),
    _pattern(
        "router_send_failed",
        (b"Failed to send typed request",),
        "a request could not be sent to a worker",
        rb"Failed to send typed request",
    ),
    _pattern(
        "panicked",
        (b"panicked",),
        "a thread panicked",
        rb"thread '(?P<thread>[\w.: -]{1,40})' .{0,40}panicked|panicked at ",
    ),
    _pattern(
        "engine_no_answer_from_detokenizer",
        (b"response from detokenizer",),
        "the health check got no answer through scheduler and detokenizer",
        rb"couldn't get a response from detokenizer for last (?P<seconds>\d+) seconds",
    ),
    _pattern(
        "engine_watchdog",
        (b"atchdog",),
        "the engine's watchdog fired",
        rb"[Ww]atchdog (?:timeout|triggered)|watchdog_timeout",
    ),
    _pattern(
        "vllm_no_broadcast_block",
        (b"shared memory broadcast block",),
        "a vLLM worker gave no answer for a minute",
        rb"No available shared memory broadcast block found in (?P<seconds>\d+) second",
    ),
    _pattern(
        "engine_batch",
        (b" batch",),
        "the scheduler ran a batch; its queues then",
        rb"(?P<batch>Prefill|Decode) batch\b"
        + b"".join(
            rb"(?=(?:.*?#%b-req: (?P<%b>\d{1,9}))?)" % (name, name)
            for name in (b"running", b"queue", b"bootstrap", b"inflight", b"prealloc", b"transfer", b"retracted")
        ),
    ),
    _pattern(
        "vllm_stats",
        (b"Running: ",),
        "vLLM's own count of requests",
        rb"Running: (?P<running>\d{1,9}) reqs, Waiting: (?P<waiting>\d{1,9}) reqs",
    ),
    _pattern(
        "bootstrap_reconnect",
        (b"Attempting to reconnect",),
        "decode lost the prefill it waits for",
        rb"Attempting to reconnect to [\w.:-]{1,80}",
    ),
    _pattern(
        "bootstrap_timeout",
        (b"ootstrap",),
        "prefill and decode did not find each other",
        rb"(?i)bootstrap.{0,60}tim(?:ed )?out",
    ),
    _pattern(
        "nccl_error",
        (
            b"NCCL",
            b"nccl",
        ),
        "NCCL failed",
        rb"NCCL (?:error|WARN)|ncclSystemError|ncclUnhandledCudaError",
    ),
    _pattern("cuda_error", (b"CUDA ",), "CUDA failed", rb"CUDA error: (?P<error>[a-z ]{1,60})|CUDA out of memory"),
    _pattern(
        "traceback",
        (
            b"Error",
            b"Exception",
        ),
        "a Python traceback",
        rb"^(?:\w+\.)*(?P<exception>[A-Z]\w{1,60}(?:Error|Exception))(?::|$)",
    ),
)


_WORDS = tuple((word, pattern) for pattern in PATTERNS for word in pattern.words)


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


def read_lines(
    lines: Sequence[bytes],
    pid: int,
    now: float,
    *,
    written: float,
    zone_s: float = 0.0,
    times: Sequence[float] = (),
    began: float = 0.0,
) -> Read:
    """Read the lines of one log, oldest first.

    `now` and `written`, when the file was last written, in seconds since the epoch; `zone_s` is what the local time of
    this host is ahead of UTC. `times` has when whoever collects the lines got each, in seconds since the epoch; `began`
    is when the process began: what was in flight before that ended with another process.
    """
    shift = _shift(lines, written, zone_s) if not times else 0.0
    started: dict[str, list[tuple[float, str, str]]] = {}
    ended: list[LogRequest] = []
    findings: dict[str, _Finding] = {}
    oldest: float | None = None
    clock: float | None = None
    for number, line in enumerate(lines):
        stamp = line_time(line, written)
        if times:
            # Closer than a line that tells whole seconds, and right whatever the writer's zone; but never long after.
            own = stamp.seconds + _LINE_TIME_S if stamp is not None and not stamp.local else times[number]
            clock = min(times[number], own)
        elif stamp is not None:
            clock = stamp.seconds - (shift if stamp.local else 0.0)
        oldest = clock if oldest is None else oldest
        _match_findings(line, clock, findings)
        if clock is None or (stamp is None and not times) or b"http_request{" not in line:
            continue
        fields = {name: quoted or bare for span in _SPAN.findall(line) for name, quoted, bare in _FIELD.findall(span)}
        request_id = escape(fields.get(b"request_id", b""), 200)
        if not request_id:
            continue
        method = escape(fields.get(b"method", b""), 16)
        path = escape((fields.get(b"uri") or fields.get(b"path") or b"").partition(b"?")[0], 200)
        if _STARTED in line:
            started.setdefault(request_id, []).append((clock, method, path))
        elif any(end in line for end in _ENDS):
            latency = latency_ms(fields.get(b"latency", b""))
            earlier = started.get(request_id)
            start = earlier.pop(0)[0] if earlier else clock - (latency or 0.0) / 1000.0
            ended.append(
                LogRequest(
                    pid=pid,
                    request_id=request_id,
                    method=method,
                    path=path,
                    age_ms=_age(start, now),
                    finished=True,
                    latency_ms=latency,
                    status=_number(fields.get(b"status_code") or fields.get(b"status", b"")[:3]),
                )
            )
    started = {name: [each for each in several if each[0] + _LINE_TIME_S >= began] for name, several in started.items()}
    # One per id, the oldest; an id that is in flight again is not told as ended.
    unfinished = [
        LogRequest(pid=pid, request_id=request_id, method=method, path=path, age_ms=_age(moment, now))
        for request_id, several in started.items()
        for moment, method, path in several[:1]
    ]
    unfinished.sort(key=lambda request: -request.age_ms)
    ended = [request for request in ended if not started.get(request.request_id)]
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
    told = None
    for word, pattern in _WORDS:
        if word not in line or pattern is told:
            continue
        matched = pattern.expression.search(line)
        if matched is None:
            continue
        told = pattern
        found = findings.setdefault(pattern.name, _Finding(pattern))
        found.count += 1
        found.last = clock
        found.captured = tuple(
            (name, escape(value, 100)) for name, value in sorted(matched.groupdict().items()) if value
        )


@dataclass(frozen=True, slots=True)
class Stamp:
    """Time at the beginning of a line."""

    # Seconds since the epoch as if it were UTC.
    seconds: float
    # True when it is the writer's local time.
    local: bool


def line_time(line: bytes, written: float) -> Stamp | None:
    """Time at the beginning of a line; None when there is none. `written` lends its year to a time that has none."""
    found = _TIME.match(line)
    if found is None:
        return None
    try:
        if found["date"]:
            moment = datetime.fromisoformat(f"{found['date'].decode()}T{found['time'].decode()}+00:00").timestamp()
            return Stamp(moment + (float(found["part"]) if found["part"] else 0.0), bool(found["local"]))
        year = datetime.fromtimestamp(written, tz=timezone.utc).year
        day, hour = found["day"].decode(), found["hour"].decode()
        moment = datetime.fromisoformat(f"{year}-{day}T{hour}+00:00").timestamp()
        if moment > written + _DAY_S:
            moment = datetime.fromisoformat(f"{year - 1}-{day}T{hour}+00:00").timestamp()
        return Stamp(moment, local=True)
    except (ValueError, OverflowError, OSError):
        return None


def _shift(lines: Sequence[bytes], written: float, zone_s: float) -> float:
    """How far local times of these lines are ahead of UTC."""
    stamps = (line_time(line, written) for line in reversed(lines))
    last = next((stamp.seconds for stamp in stamps if stamp is not None and stamp.local), written)
    return min((0.0, zone_s), key=lambda shift: abs(last - shift - written))


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
