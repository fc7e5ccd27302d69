"""Parts of a bed: how it is set up, its pids, its own word about what is in flight, and the handle of an engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bed.programs import bedlink


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a wedge asks of the bed's programs; they are started again for a wedge that asks for something else."""

    router_flags: tuple[str, ...] = ()
    pool: int = 0
    """Connections that the harness opens at most, 0 for no limit."""
    own_network: bool = False
    """Whether all of them run in a network namespace of the bed's own."""


@dataclass(frozen=True, kw_only=True)
class EnginePids:
    http: int
    scheduler: int
    """The first, where there are several."""
    detokenizer: int
    schedulers: tuple[int, ...]
    controller: int | None
    workers: tuple[int, ...] = ()
    """Tokenizer workers, where there are several."""

    def all(self) -> list[int]:
        more = [] if self.controller is None else [self.controller]
        return [self.http, *self.workers, *more, *self.schedulers, self.detokenizer]


@dataclass(frozen=True, kw_only=True)
class Pids:
    router: int
    harness: int
    stray: int | None
    engines: dict[str, EnginePids]
    """By name: "prefill" and "decode", or "engine0" and "engine1" where the bed is not disaggregated."""

    @property
    def prefill(self) -> EnginePids:
        return self.engines["prefill"]

    @property
    def decode(self) -> EnginePids:
        return self.engines["decode"]

    def all(self) -> list[int]:
        found = [self.router, self.harness, *([self.stray] if self.stray else [])]
        for engine in self.engines.values():
            found += engine.all()
        return found


@dataclass(frozen=True, kw_only=True)
class RequestTruth:
    """What a client itself knows of its request; times are seconds of CLOCK_MONOTONIC and of the wall clock."""

    client: str
    """"harness" or "stray"."""
    request_id: str
    state: str
    """"sent" (no response headers yet) or "streaming"."""
    sent_at_monotonic: float
    sent_at_wall: float
    last_byte_monotonic: float
    bytes_in: int


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The bed's own word, asked over the control channel."""

    wedge: str
    requests: tuple[RequestTruth, ...]
    """In flight at this moment."""
    completed: int
    failed: int
    engines: dict[str, dict[str, Any]]
    """Per engine: the HTTP process's status (`in_flight`, `silenced`, `blocked`, ...), under "scheduler" its queues."""


class Engine:
    """One engine stand-in of the bed and its control."""

    def __init__(self, name: str, role: str, port: int, bootstrap_port: int, run_dir: Path) -> None:
        self.name = name
        self.role = role
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        self.bootstrap_port = bootstrap_port
        self.control = str(run_dir / f"{name}.ctl")

    def http(self, **request: Any) -> dict[str, Any]:
        """Ask the HTTP process over its control channel."""
        return bedlink.ask(self.control, request)

    def scheduler(self, **request: Any) -> dict[str, Any]:
        """Ask every scheduler over its control channel; what they say is summed up."""
        sockets = sorted(Path(self.control).parent.glob(f"{Path(self.control).name}.scheduler*"))
        # Where none is there any more, whoever asks shall hear of it.
        replies = [bedlink.ask(str(socket), request) for socket in sockets or [f"{self.control}.scheduler"]]
        return {name: sum(reply[name] for reply in replies) for name in replies[0]}

    def pids(self) -> EnginePids:
        pids = {key: tuple(v) if isinstance(v, list) else v for key, v in self.http(do="status")["pids"].items()}
        return EnginePids(**pids)
