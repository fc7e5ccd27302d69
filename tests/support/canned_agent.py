"""An agent that answers what it was told, over a real unix socket: for every answer that a real one gives rarely."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from freezeframe.v1 import meta_pb2, service_pb2, service_pb2_grpc

METADATA_KEY = "freezeframe-error-bin"
CHUNK_BYTES = 1024 * 1024

Events = Callable[[Any, grpc.ServicerContext], Iterator[service_pb2.CaptureEvent]]


@dataclass(kw_only=True)
class Script:
    """What the agent says, and what it was asked."""

    # Bytes of the .ffz file.
    data: bytes = b""
    done: service_pb2.CaptureDone | None = None
    steps: list[service_pb2.Progress] = field(default_factory=list)
    # Instead of the above.
    capture: Events | None = None
    # Raised by every call: status, details, ErrorInfo.
    refusal: tuple[grpc.StatusCode, str, service_pb2.ErrorInfo | None] | None = None
    kept: service_pb2.ListSnapshotsResponse = field(default_factory=service_pb2.ListSnapshotsResponse)
    schedules: service_pb2.ListSchedulesResponse = field(default_factory=service_pb2.ListSchedulesResponse)
    capabilities: service_pb2.GetCapabilitiesResponse = field(default_factory=service_pb2.GetCapabilitiesResponse)
    requests: list[Any] = field(default_factory=list)
    # Set to let a capture that waits go on.
    release: threading.Event = field(default_factory=threading.Event)


def done_of(data: bytes, snapshot_id: str = "gpu-07-1", *, kept: bool = True) -> service_pb2.CaptureDone:
    return service_pb2.CaptureDone(
        snapshot_id=snapshot_id, bytes=len(data), digest=hashlib.sha256(data).digest(), kept=kept
    )


def step(collector: str, status: str = "", detail: str = "") -> service_pb2.Progress:
    progress = service_pb2.Progress(collector=collector)
    if status:
        progress.outcome.CopyFrom(
            meta_pb2.Outcome(
                collector=collector, status=meta_pb2.Outcome.Status.Value(status), detail=detail, duration_ms=41.0
            )
        )
    return progress


class _Servicer(service_pb2_grpc.CaptureServiceServicer):
    def __init__(self, script: Script) -> None:
        self.script = script

    def _asked(self, request: Any, context: grpc.ServicerContext) -> None:
        self.script.requests.append(request)
        if self.script.refusal is not None:
            code, details, info = self.script.refusal
            if info is not None:
                context.set_trailing_metadata(((METADATA_KEY, info.SerializeToString()),))
            context.abort(code, details)

    def Capture(  # noqa: N802 - as in the proto
        self, request: Any, context: grpc.ServicerContext
    ) -> Iterator[service_pb2.CaptureEvent]:
        self._asked(request, context)
        if self.script.capture is not None:
            yield from self.script.capture(request, context)
            return
        for each in self.script.steps:
            yield service_pb2.CaptureEvent(progress=each)
        for offset in range(0, len(self.script.data), CHUNK_BYTES):
            piece = self.script.data[offset : offset + CHUNK_BYTES]
            yield service_pb2.CaptureEvent(chunk=service_pb2.Chunk(data=piece))
        yield service_pb2.CaptureEvent(done=self.script.done or done_of(self.script.data))

    def GetSnapshot(  # noqa: N802 - as in the proto
        self, request: Any, context: grpc.ServicerContext
    ) -> Iterator[service_pb2.GetSnapshotResponse]:
        self._asked(request, context)
        yield service_pb2.GetSnapshotResponse(chunk=service_pb2.Chunk(data=self.script.data))
        yield service_pb2.GetSnapshotResponse(done=self.script.done or done_of(self.script.data))

    def ListSnapshots(  # noqa: N802 - as in the proto
        self, request: Any, context: grpc.ServicerContext
    ) -> service_pb2.ListSnapshotsResponse:
        self._asked(request, context)
        return self.script.kept

    def DeleteSnapshot(  # noqa: N802 - as in the proto
        self, request: Any, context: grpc.ServicerContext
    ) -> service_pb2.DeleteSnapshotResponse:
        self._asked(request, context)
        return service_pb2.DeleteSnapshotResponse()

    def PinSnapshot(  # noqa: N802 - as in the proto
        self, request: Any, context: grpc.ServicerContext
    ) -> service_pb2.PinSnapshotResponse:
        self._asked(request, context)
        return service_pb2.PinSnapshotResponse()

    def ListSchedules(  # noqa: N802 - as in the proto
        self, request: Any, context: grpc.ServicerContext
    ) -> service_pb2.ListSchedulesResponse:
        self._asked(request, context)
        return self.script.schedules

    def PutSchedule(  # noqa: N802 - as in the proto
        self, request: Any, context: grpc.ServicerContext
    ) -> service_pb2.PutScheduleResponse:
        self._asked(request, context)
        return service_pb2.PutScheduleResponse()

    def DeleteSchedule(  # noqa: N802 - as in the proto
        self, request: Any, context: grpc.ServicerContext
    ) -> service_pb2.DeleteScheduleResponse:
        self._asked(request, context)
        return service_pb2.DeleteScheduleResponse()

    def GetCapabilities(  # noqa: N802 - as in the proto
        self, request: Any, context: grpc.ServicerContext
    ) -> service_pb2.GetCapabilitiesResponse:
        self._asked(request, context)
        return self.script.capabilities


@contextlib.contextmanager
def canned_agent(
    script: Script, *, name: str = "capture.sock", directory: Path | None = None, knows_service: bool = True
) -> Iterator[Path]:
    """Serve `script`; gives the path of the socket. Without `knows_service` it is an agent of another version."""
    with contextlib.ExitStack() as stack:
        if directory is None:
            # Not pytest's tmp_path: the path of a socket has 107 bytes.
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ff-")))
            directory.chmod(0o711)
        server = grpc.server(futures.ThreadPoolExecutor(4))
        if knows_service:
            service_pb2_grpc.add_CaptureServiceServicer_to_server(_Servicer(script), server)
        path = directory / name
        server.add_insecure_port(f"unix:{path}")
        server.start()
        try:
            yield path
        finally:
            script.release.set()
            server.stop(None).wait()
