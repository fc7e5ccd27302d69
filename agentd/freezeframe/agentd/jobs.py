"""What crosses from the front to the launcher: typed jobs, never a path, a command or a client's text.

The front asks for a collector by name, over processes by pid; the launcher looks the name up in the explicit list and
forks a worker. A job is one JSON object on the wire between two processes of the agent that trust each other's build,
not each other's content: `Job.decode` refuses what is not exactly a job.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

from freezeframe.judge.model import Process

# Environment variable in which the supervisor tells its children its pid: what belongs to the agent is no target.
SUPERVISOR_VARIABLE = "FREEZEFRAME_SUPERVISOR_PID"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One process to look at, with what the front knows of it already."""

    pid: int
    # Start time, clock ticks since boot: a worker that finds another one leaves the pid alone.
    start_ticks: int
    role: Process.Role = Process.Role.OTHER
    # Leader of its engine, 0 when none.
    engine_pid: int = 0
    # "3.11" when it runs CPython; empty otherwise.
    python: str = ""
    # TCP ports it listens on.
    ports: tuple[int, ...] = ()
    # "sglang", "vllm", "sglang-router", "smg"; empty when unknown.
    product: str = ""
    # True when a read of its memory was stuck: its memory is not to be read.
    memory_blocked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Upper bounds of what one job may bring."""

    threads: int = 20_000
    sockets: int = 50_000
    frames: int = 200
    tasks: int = 20_000
    log_bytes: int = 4 * 1024 * 1024
    log_lines: int = 100_000
    metric_bytes: int = 4 * 1024 * 1024
    text_bytes: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One collector over some targets."""

    job_id: int
    collector: str
    targets: tuple[Target, ...] = ()
    # Time between the two looks, milliseconds; 0 = one look.
    window_ms: float = 0.0
    # Time this job has from its start, milliseconds; it should end well before, and is killed then.
    deadline_ms: float = 5000.0
    caps: Caps = Caps()
    # Whether running threads may be stopped for microseconds.
    allow_seize: bool = False
    # Seconds of CPU profile; 0 = none.
    profile_s: float = 0.0
    # TCP ports on which other hosts serve: whose clients are looked for.
    toward: tuple[int, ...] = ()
    # Name of a hook of the configuration file, and what it is told; both empty for every other collector.
    hook: str = ""
    event: str = ""

    def encode(self) -> bytes:
        """Serialise for the launcher."""
        plain = asdict(self)
        for target in plain["targets"]:
            target["role"] = target["role"].name
        return json.dumps(plain, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> Job:
        """Parse what `encode` wrote. Raises ValueError for anything else."""
        try:
            plain = json.loads(data)
            targets = tuple(
                Target(**{**target, "role": Process.Role[target["role"]], "ports": tuple(target["ports"])})
                for target in plain["targets"]
            )
            job = cls(**{**plain, "targets": targets, "caps": Caps(**plain["caps"]), "toward": tuple(plain["toward"])})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"decoding a job of {len(data)} bytes: {error!r}") from error
        _check_types(job)
        for target in job.targets:
            _check_types(target)
        return job


_TYPES: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "str": str, "bool": bool}


def _check_types(value: Job | Target) -> None:
    for field in fields(value):
        expected = _TYPES.get(str(field.type))
        if expected is not None and not isinstance(getattr(value, field.name), expected):
            raise ValueError(f"decoding a job: {field.name} is not a {field.type}")
