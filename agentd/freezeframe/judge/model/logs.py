"""What logs say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFinding:
    """Something that a log says, by pattern; never the line itself."""

    # Stable name of the pattern, such as router_prefill_failed.
    pattern: str = ""
    # What it means.
    meaning: str = ""
    # Process that writes the log.
    pid: int = 0
    # How often it was seen in the window.
    count: int = 0
    # Age of the last one, milliseconds; absent when lines carry no time.
    last_age_ms: float | None = None
    # What the pattern captured, by group name, of the last one.
    captured: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """One log that was read, and how much of it."""

    # Process that writes it.
    pid: int = 0
    # "file", "journal", "docker", "cri".
    kind: str = ""
    # Path or unit, escaped.
    name: str = ""
    # Bytes read.
    bytes_read: float = 0.0
    # Lines read.
    lines: int = 0
    # Age of the oldest line read, milliseconds; absent when lines carry no time.
    covers_ms: float | None = None
    # Bytes before the part that was read.
    bytes_skipped: float = 0.0
    # Lines cut because they were too long.
    lines_cut: int = 0
    # Why it could not be read; empty when it was.
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """One request that a router's log started and never finished, or the slowest that it finished."""

    # Process that writes the log.
    pid: int = 0
    # Request id.
    request_id: str = ""
    # Method.
    method: str = ""
    # Path without query string.
    path: str = ""
    # Time since the started line, milliseconds.
    age_ms: float = 0.0
    # True when the log has its end.
    finished: bool = False
    # Time to the response headers as the log says, milliseconds; absent when not finished.
    latency_ms: float | None = None
    # HTTP status; 0 when not finished.
    status: int = 0
