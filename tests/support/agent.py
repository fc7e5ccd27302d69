"""A whole front in the test's process: real gRPC servers on real unix sockets, an engine with canned snapshots."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc

from freezeframe.agentd.audit import Audit
from freezeframe.agentd.capabilities import Capability, State
from freezeframe.agentd.capture import CaptureSpec, OnStep, Step
from freezeframe.agentd.captures import Captures
from freezeframe.agentd.config import CaptureLimits, Config, StoreLimits
from freezeframe.agentd.front import make_listener, serve
from freezeframe.agentd.logs import make_logger
from freezeframe.agentd.remote import Listener
from freezeframe.agentd.schedules.files import Files
from freezeframe.agentd.schedules.runner import Schedules
from freezeframe.agentd.service import Parts
from freezeframe.agentd.store import Store
from freezeframe.judge.model import Outcome, Snapshot
from freezeframe.v1 import service_pb2_grpc
from tests.support.filled import canned_snapshot

COLLECTORS = ("snapshot_processes", "snapshot_sockets", "read_logs")


class CannedEngine:
    """Returns a canned snapshot for each capture, once `release` is set; counts what it is asked."""

    def __init__(self, make: Callable[[str], Snapshot] = canned_snapshot) -> None:
        self.make = make
        self.specs: list[CaptureSpec] = []
        self.cancelled = 0
        self.release = asyncio.Event()
        self.release.set()
        self.begun = asyncio.Event()
        self.error: Exception | None = None

    async def capture(self, spec: CaptureSpec, on_step: OnStep) -> Snapshot:
        self.specs.append(spec)
        number = len(self.specs)
        on_step(Step(collector="snapshot_processes", doing="reading /proc/4711/stat", done=1, total=2))
        self.begun.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        on_step(Step(collector="snapshot_processes", outcome=Outcome(collector="snapshot_processes", items=2)))
        return self.make(f"gpu-07-20260102T030405-{number:04d}")


@dataclass
class RunningAgent:
    directory: Path
    engine: CannedEngine
    parts: Parts
    log: io.StringIO
    stop: asyncio.Event
    listener: Listener | None = None
    channels: list[grpc.aio.Channel] = field(default_factory=list)

    def socket(self, role: str = "admin") -> Path:
        return self.directory / "run" / f"{role}.sock"

    def channel(self, role: str = "admin") -> grpc.aio.Channel:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 32 * 1024 * 1024)]
        channel = grpc.aio.insecure_channel(f"unix:{self.socket(role)}", options=options)
        self.channels.append(channel)
        return channel

    def stub(self, role: str = "admin") -> Any:
        return service_pb2_grpc.CaptureServiceStub(self.channel(role))

    def audit_lines(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in lines if line["event"] in {"call", "calls not written"}]


async def canned_ports() -> tuple[int, ...]:
    return (30000,)


async def canned_capabilities() -> tuple[Capability, ...]:
    return (
        Capability(name="root", state=State.PRESENT, detail="runs as root"),
        Capability(name="bcc", state=State.ABSENT, detail="not installed", hint="apt install python3-bpfcc"),
    )


def make_parts(engine: CannedEngine, store: Store, limits: CaptureLimits, *, schedules: Path | None = None) -> Parts:
    """`schedules` is the directory of schedules that were added; without it nothing is captured unasked."""
    captures = Captures(engine, store, limits, writer="freezeframe-agentd 0.1.0")
    runner = None
    if schedules is not None:
        runner = Schedules(
            captures=captures,
            store=store,
            files=Files(str(schedules)),
            configured=(),
            collectors=COLLECTORS,
            logger=make_logger(io.StringIO()),
            audit=Audit(make_logger(io.StringIO())),
        )
    return Parts(
        captures=captures,
        schedules=runner,
        store=store,
        limits=limits,
        collectors=COLLECTORS,
        capabilities=canned_capabilities,
        serving_ports=canned_ports,
        agent_version="0.1.0",
        host="gpu-07",
        kernel="6.18.0",
    )


@contextlib.asynccontextmanager
async def running_agent(
    directory: Path,
    *,
    engine: CannedEngine | None = None,
    capture: CaptureLimits | None = None,
    store_limits: StoreLimits | None = None,
    store_path: Path | None = None,
    config: Config | None = None,
    insecure: bool = False,
) -> AsyncIterator[RunningAgent]:
    """Serve below `directory` (sockets in run/, snapshots in state/) until the block ends.

    Where the configuration has it listen for other hosts, it does.
    """
    engine = engine or CannedEngine()
    capture = capture or CaptureLimits()
    store = Store(str(store_path or directory / "state" / "snapshots"), store_limits or StoreLimits())

    parts = make_parts(engine, store, capture, schedules=directory / "state" / "schedules")
    assert parts.schedules is not None
    log = io.StringIO()
    logger = make_logger(log)
    stop, ready = asyncio.Event(), asyncio.Event()
    config = replace(config or Config(), runtime_dir=str(directory / "run"), state_dir=str(directory / "state"))
    audit = Audit(logger)
    listener = make_listener(config, audit, logger, insecure=insecure)
    serving = asyncio.create_task(
        serve(config, parts, logger=logger, audit=audit, stop=stop, on_ready=ready.set, listener=listener)
    )
    waiting = asyncio.create_task(ready.wait())
    await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        waiting.cancel()
        await serving
    scheduling = asyncio.create_task(parts.schedules.run())
    agent = RunningAgent(directory=directory, engine=engine, parts=parts, log=log, stop=stop, listener=listener)
    try:
        yield agent
    finally:
        for channel in agent.channels:
            await channel.close()
        stop.set()
        await asyncio.wait_for(serving, 30)
        scheduling.cancel()
        await asyncio.wait([scheduling])
