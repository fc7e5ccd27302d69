"""The gRPC servicer: decodes, asks, encodes. What it raises, `guard` turns into a status; it checks no role itself."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import grpc

from freezeframe.agentd import policy
from freezeframe.agentd.callers import Callers
from freezeframe.agentd.capabilities import Capability
from freezeframe.agentd.capture import Step
from freezeframe.agentd.captures import Captures
from freezeframe.agentd.config import CaptureLimits
from freezeframe.agentd.errors import NotSupportedError, StoreFailedError
from freezeframe.agentd.host import rfc3339
from freezeframe.agentd.schedules.runner import Schedules
from freezeframe.agentd.store import Kept, Store
from freezeframe.agentd.watching import Live, Watching
from freezeframe.judge import SCHEMA, wire
from freezeframe.v1 import meta_pb2, process_pb2, service_pb2, service_pb2_grpc, socket_pb2

CHUNK_BYTES = 1024 * 1024
_WATCH_MS, _WATCH_SHORTEST_S, _WATCH_LONGEST_S = 1000.0, 0.5, 60.0

_Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the service answers from; the composition root makes it."""

    captures: Captures
    # None where nothing is kept.
    store: Store | None
    limits: CaptureLimits
    # Names that --only and --skip take.
    collectors: tuple[str, ...]
    # What the agent can see here: asked for at each GetCapabilities.
    capabilities: Callable[[], Awaitable[Sequence[Capability]]]
    # TCP ports on which proxies, routers and engines of this host take requests.
    serving_ports: Callable[[], Awaitable[Sequence[int]]]
    # None where there is no live view.
    watching: Watching | None = None
    # None where nothing is captured unasked.
    schedules: Schedules | None = None
    agent_version: str
    host: str
    kernel: str


class CaptureServicer(service_pb2_grpc.CaptureServiceServicer):
    """Answers on one server."""

    def __init__(self, parts: Parts, callers: Callers) -> None:
        """Answer from `parts`; the role of a caller is only told, not checked."""
        self._parts = parts
        self._callers = callers
        self._begin = time.monotonic()

    async def Capture(  # noqa: N802 - as in the proto
        self, request: service_pb2.CaptureRequest, _context: _Context
    ) -> AsyncIterator[service_pb2.CaptureEvent]:
        """Stream progress, the file in chunks, the end."""
        spec = policy.capture_spec(request, self._parts.limits, self._parts.collectors)
        async with self._parts.captures.join(spec) as participation:
            async with contextlib.aclosing(participation.steps()) as steps:
                async for step in steps:
                    yield service_pb2.CaptureEvent(progress=_progress(step))
            captured = await participation.captured()
            for chunk in _chunks(captured.data):
                yield service_pb2.CaptureEvent(chunk=chunk)
            reason = await participation.not_kept_because()
            yield service_pb2.CaptureEvent(
                done=service_pb2.CaptureDone(
                    snapshot_id=captured.snapshot_id,
                    bytes=len(captured.data),
                    digest=captured.digest,
                    kept=not reason,
                    not_kept_because=reason,
                    shared=participation.shared,
                )
            )

    async def ListSnapshots(  # noqa: N802
        self, request: service_pb2.ListSnapshotsRequest, _context: _Context
    ) -> service_pb2.ListSnapshotsResponse:
        """List what is kept."""
        if self._parts.store is None:
            return service_pb2.ListSnapshotsResponse()
        kept = await self._parts.store.kept(request.limit)
        return service_pb2.ListSnapshotsResponse(snapshots=[_kept(each) for each in kept])

    async def GetSnapshot(  # noqa: N802
        self, request: service_pb2.GetSnapshotRequest, _context: _Context
    ) -> AsyncIterator[service_pb2.GetSnapshotResponse]:
        """Stream one file as it is, also a damaged one: the reader saves what is whole."""
        digest = hashlib.sha256()
        size = 0
        snapshot_id = request.snapshot_id
        async with contextlib.aclosing(self._store().read(request.snapshot_id)) as chunks:
            async for snapshot_id, chunk in chunks:  # noqa: B007 - the id that "latest" meant
                digest.update(chunk)
                size += len(chunk)
                yield service_pb2.GetSnapshotResponse(chunk=service_pb2.Chunk(data=chunk))
        done = service_pb2.CaptureDone(snapshot_id=snapshot_id, bytes=size, digest=digest.digest(), kept=True)
        yield service_pb2.GetSnapshotResponse(done=done)

    async def PinSnapshot(  # noqa: N802
        self, request: service_pb2.PinSnapshotRequest, _context: _Context
    ) -> service_pb2.PinSnapshotResponse:
        """Pin or unpin."""
        await self._store().pin(request.snapshot_id, pinned=request.pinned)
        return service_pb2.PinSnapshotResponse()

    async def DeleteSnapshot(  # noqa: N802
        self, request: service_pb2.DeleteSnapshotRequest, _context: _Context
    ) -> service_pb2.DeleteSnapshotResponse:
        """Delete one that is not pinned."""
        await self._store().delete(request.snapshot_id)
        return service_pb2.DeleteSnapshotResponse()

    async def GetCapabilities(  # noqa: N802
        self, _request: service_pb2.GetCapabilitiesRequest, context: _Context
    ) -> service_pb2.GetCapabilitiesResponse:
        """Say what the agent is and can see."""
        role = self._callers(context.peer()).role
        return service_pb2.GetCapabilitiesResponse(
            agent_version=self._parts.agent_version,
            schema=SCHEMA,
            host=self._parts.host,
            kernel=self._parts.kernel,
            capabilities=[
                service_pb2.Capability(
                    name=each.name,
                    state=service_pb2.Capability.State.Value(each.state.name),
                    detail=each.detail,
                    hint=each.hint,
                )
                for each in await self._parts.capabilities()
            ],
            uptime_ms=(time.monotonic() - self._begin) * 1000.0,
            roles=role.served() if role is not None else (),
            collectors=self._parts.collectors,
            serving_ports=await self._parts.serving_ports(),
        )

    async def ListSchedules(  # noqa: N802
        self, _request: service_pb2.ListSchedulesRequest, _context: _Context
    ) -> service_pb2.ListSchedulesResponse:
        """List what captures by itself."""
        entries = self._parts.schedules.listed() if self._parts.schedules is not None else ()
        return service_pb2.ListSchedulesResponse(schedules=[policy.schedule_message(each) for each in entries])

    async def PutSchedule(  # noqa: N802
        self, request: service_pb2.PutScheduleRequest, _context: _Context
    ) -> service_pb2.PutScheduleResponse:
        """Add or replace one."""
        schedule = policy.schedule(request.schedule, self._parts.limits, self._parts.collectors)
        await self._schedules().put(schedule)
        return service_pb2.PutScheduleResponse()

    async def DeleteSchedule(  # noqa: N802
        self, request: service_pb2.DeleteScheduleRequest, _context: _Context
    ) -> service_pb2.DeleteScheduleResponse:
        """Delete one that was added."""
        await self._schedules().delete(request.name)
        return service_pb2.DeleteScheduleResponse()

    async def Watch(  # noqa: N802
        self, request: service_pb2.WatchRequest, _context: _Context
    ) -> AsyncIterator[service_pb2.WatchResponse]:
        """Stream the edges of the serving path, about once a second."""
        if self._parts.watching is None:
            raise _not_yet("watch")
        interval_s = min(_WATCH_LONGEST_S, max(_WATCH_SHORTEST_S, (request.interval_ms or _WATCH_MS) / 1000.0))
        while True:
            begin = time.monotonic()
            yield _live(await self._parts.watching.look(), self._parts)
            await asyncio.sleep(max(0.0, begin + interval_s - time.monotonic()))

    def _schedules(self) -> Schedules:
        if self._parts.schedules is None:
            raise NotSupportedError("this agent captures nothing by itself", "ask the daemon, not a private agent")
        return self._parts.schedules

    def _store(self) -> Store:
        if self._parts.store is None:
            raise StoreFailedError("this agent keeps nothing", "use the daemon's socket")
        return self._parts.store


def _live(live: Live, parts: Parts) -> service_pb2.WatchResponse:
    return service_pb2.WatchResponse(
        meta=meta_pb2.Meta(host=parts.host, agent_version=parts.agent_version, started_at=rfc3339(time.time())),
        edges=[cast("socket_pb2.Edge", wire.to_message(edge)) for edge in live.edges],
        processes=[cast("process_pb2.Process", wire.to_message(process)) for process in live.processes],
    )


def _not_yet(what: str) -> NotSupportedError:
    return NotSupportedError(f"this agent knows no {what}", "a later version will; take one capture: freezeframe snap")


def _progress(step: Step) -> service_pb2.Progress:
    message = service_pb2.Progress(collector=step.collector, doing=step.doing, done=step.done, total=step.total)
    if step.outcome is not None:
        message.outcome.CopyFrom(cast("meta_pb2.Outcome", wire.to_message(step.outcome)))
    return message


def _chunks(data: bytes) -> Iterator[service_pb2.Chunk]:
    for offset in range(0, len(data), CHUNK_BYTES):
        yield service_pb2.Chunk(data=data[offset : offset + CHUNK_BYTES])


def _kept(kept: Kept) -> service_pb2.KeptSnapshot:
    message = service_pb2.KeptSnapshot(
        snapshot_id=kept.snapshot_id, bytes=kept.size_bytes, pinned=kept.pinned, damage=kept.damage
    )
    if kept.manifest is not None:
        message.manifest.CopyFrom(kept.manifest)
        for part in message.manifest.hosts:
            part.ClearField("sections")
    return message
