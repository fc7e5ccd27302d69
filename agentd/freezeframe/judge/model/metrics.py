"""Gauges, endpoints and ranks."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One sample of one gauge or counter."""

    # Name as the exporter spells it.
    name: str = ""
    # Labels.
    labels: tuple[tuple[str, str], ...] = ()
    # Value.
    value: float = 0.0
    # Age of the value, milliseconds; absent when the source does not tell.
    age_ms: float | None = None
    # Change between the looks; absent with one look.
    delta: float | None = None
    # Process that exports it.
    pid: int = 0
    # Where it was read: "http 127.0.0.1:30000/metrics", "mmap", "load snapshot".
    source: str = ""
    # Why its value may not be true of now, one sentence; empty when nothing is known against it.
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One passive HTTP endpoint and how it answered."""

    # Process that listens.
    pid: int = 0
    # Address that was asked, "127.0.0.1:30000".
    address: str = ""
    # Path, such as /model_info.
    path: str = ""
    # HTTP status; 0 when no answer came.
    status: int = 0
    # Time to the answer, or until it was given up, milliseconds.
    duration_ms: float = 0.0
    # "connect timed out", "no answer", "refused" ...; empty when answered.
    error: str = ""
    # What an answer proves: "liveness", "metrics", "workers", "loads".
    purpose: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DebugTrace:
    """What debugging facilities of NCCL, torch and CUDA tell or have left, found without setting any of them off."""

    # Process that it belongs to.
    pid: int = 0
    # "nccl ras", "flight recorder" or "cuda core pipe".
    kind: str = ""
    # Address that answered, or the file or pipe as the process sees it.
    path: str = ""
    # What was answered, escaped; empty for a file.
    text: str = ""
    # Time since the file was written, milliseconds.
    age_ms: float | None = None
    # Size of the file, bytes.
    size_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank of an engine and where it stands."""

    # Scheduler or worker process.
    pid: int = 0
    # Label, such as "TP0".
    rank: str = ""
    # The frame that decides: "all_reduce under poll_and_all_reduce".
    frame: str = ""
    # Ranks that stand in the same place share a group number.
    group: int = 0
    # True when it is in the minority group.
    minority: bool = False
    # Its phase: "all_reduce", "broadcast", "idle loop", "batch launch" ...; empty when unknown.
    phase: str = ""
    # Its phase at the second look; empty with one look.
    phase_after: str = ""
    # The frame that decides at the second look.
    frame_after: str = ""
    # Leader of its engine (the HTTP process); 0 when unknown.
    engine_pid: int = 0
    # True when both looks show the same stack; absent with one look.
    same_at_second_look: bool | None = None
    # CPU time of its main thread between the looks, milliseconds; absent when unknown.
    cpu_ms_delta: float | None = None
