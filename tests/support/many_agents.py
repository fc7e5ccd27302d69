"""Serves hosts of a fleet, each on a socket of its own as its agent does: python -m tests.support.many_agents

Arguments: folder of the sockets, hosts in all, number of the first one served here, step to the next. Prints "ready"
once all of them answer, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import grpc

from freezeframe.judge import file
from freezeframe.v1 import service_pb2, service_pb2_grpc
from tests.support.canned_agent import CHUNK_BYTES, done_of, step
from tests.support.many_hosts import Cast

# Between its two looks, an agent waits.
WINDOW_S = 1.0


class _Agent(service_pb2_grpc.CaptureServiceServicer):
    def __init__(self, data: bytes) -> None:
        self._part = file.read_manifest(data).hosts[0]
        self._sections = data[file.manifest_end(data) :]

    async def GetCapabilities(  # noqa: N802 - as in the proto
        self, _request: Any, _context: Any
    ) -> service_pb2.GetCapabilitiesResponse:
        return service_pb2.GetCapabilitiesResponse(serving_ports=[30_000])

    async def Capture(  # noqa: N802 - as in the proto
        self, _request: Any, _context: Any
    ) -> AsyncIterator[service_pb2.CaptureEvent]:
        began = datetime.now(tz=timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        yield service_pb2.CaptureEvent(progress=step("snapshot_processes"))
        await asyncio.sleep(WINDOW_S)
        for outcome in self._part.outcomes:
            yield service_pb2.CaptureEvent(progress=service_pb2.Progress(collector=outcome.collector, outcome=outcome))
        self._part.meta.started_at = began
        head = file.fleet_head([self._part], "tests", None)
        data = head + self._sections
        for offset in range(0, len(data), CHUNK_BYTES):
            yield service_pb2.CaptureEvent(chunk=service_pb2.Chunk(data=data[offset : offset + CHUNK_BYTES]))
        yield service_pb2.CaptureEvent(done=done_of(data, self._part.meta.snapshot_id))


async def _serve(folder: Path, cast: Cast, numbers: range) -> None:
    servers = []
    for number in numbers:
        server = grpc.aio.server()
        service_pb2_grpc.add_CaptureServiceServicer_to_server(_Agent(cast.file(number)), server)  # type: ignore[no-untyped-call]
        server.add_insecure_port(f"unix:{folder}/{cast.name(number)}.sock")
        await server.start()
        servers.append(server)
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await asyncio.gather(*(server.stop(None) for server in servers))


def main() -> None:
    """Serve until standard input ends."""
    folder, hosts, first, by = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    asyncio.run(_serve(Path(folder), Cast(hosts), range(first, hosts, by)))


if __name__ == "__main__":
    main()
