"""Parquet, a folder per table and a file per snapshot in it: for DuckDB, Spark and Trino (docs/pages/tables.md).

Columns are the fields of the wire message under their own names; every row has the snapshot, its host and its time.
Alone imports pyarrow (extra `[export]`).
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from freezeframe.client.export import stacks
from freezeframe.client.export.findings import standing
from freezeframe.client.export.moments import earlier, moment
from freezeframe.client.render.guard import clean
from freezeframe.client.render.values import enum_name
from freezeframe.judge.wire import is_repeated
from freezeframe.v1 import host_pb2, process_pb2, request_pb2, snapshot_pb2, socket_pb2, stack_pb2, verdict_pb2

# Signed: not every reader has unsigned numbers.
_NUMBERS = {
    FieldDescriptor.CPPTYPE_UINT32: pa.int64(),
    FieldDescriptor.CPPTYPE_DOUBLE: pa.float64(),
    FieldDescriptor.CPPTYPE_BOOL: pa.bool_(),
}
_MOMENT = pa.timestamp("us", tz="UTC")
_SNAPSHOT = (("snapshot", pa.string()), ("host", pa.string()), ("captured_at", _MOMENT))
# The process of a row.
_PROCESS = (("process", pa.string()), ("role", pa.string()))
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")

_Columns = Sequence[tuple[str, pa.DataType]]
_Rows = Iterator[Sequence[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """A field of a wire message as a column."""

    name: str
    kind: pa.DataType
    read: Callable[[Any], Any]


def render(snapshots: Iterable[snapshot_pb2.Snapshot]) -> Iterator[tuple[str, bytes]]:
    """Give path and content of each file; an empty table has its file too, so that its folder can be read."""
    taken: Counter[str] = Counter()
    for snapshot in snapshots:
        own = _file_name(snapshot)
        taken[own] += 1
        # Hosts of one file that call themselves the same must not replace each other.
        own += f"-{taken[own]}" if taken[own] > 1 else ""
        for name, (columns, rows) in TABLES.items():
            yield f"{name}/{own}.parquet", _write(snapshot, columns, rows(_Host(snapshot)))


class _Host:
    """What rows of one snapshot have in common."""

    def __init__(self, snapshot: snapshot_pb2.Snapshot) -> None:
        self.snapshot = snapshot
        self._known = {process.pid: process for process in snapshot.processes}
        self._hops = {pid: hop.name for hop in snapshot.hops for pid in hop.pids}

    def process(self, pid: int | None) -> tuple[str | None, str | None]:
        known = self._known.get(pid) if pid is not None else None
        if known is None:
            return None, None
        return clean(known.title or known.comm), enum_name(known, "role")

    def hop(self, pid: int | None) -> str | None:
        return self._hops.get(pid) if pid is not None else None


def _threads(host: _Host) -> _Rows:
    frames = {(seen.pid, seen.tid): seen.first for seen in stacks.looks(host.snapshot)}
    for process in host.snapshot.processes:
        for thread in process.threads:
            stack = [clean(_frame(frame)) for frame in frames.get((process.pid, thread.tid), ())]
            yield process.pid, *host.process(process.pid), *_values(thread), stack


def _sockets(host: _Host) -> _Rows:
    for socket in host.snapshot.sockets:
        yield *host.process(socket.pid if socket.HasField("pid") else None), *_values(socket)


def _requests(host: _Host) -> _Rows:
    for request in host.snapshot.requests:
        pid = request.pid if request.HasField("pid") else None
        yield *host.process(pid), host.hop(pid), *_values(request)


def _tasks(host: _Host) -> _Rows:
    for task in host.snapshot.asyncio_tasks:
        yield *host.process(task.pid), *_values(task)


def _locks(host: _Host) -> _Rows:
    for lock in host.snapshot.locks:
        yield *host.process(lock.pid), *_values(lock)


def _gpus(host: _Host) -> _Rows:
    for gpu in host.snapshot.gpus:
        yield _values(gpu)


def _series(host: _Host) -> _Rows:
    """Give a row per sample that there is."""
    history = host.snapshot.history
    taken = moment(host.snapshot.meta.started_at)
    for series in history.series:
        pid = series.pid if series.HasField("pid") else None
        peer = series.peer_pid if series.HasField("peer_pid") else None
        named = (*host.process(pid), clean(series.kind), clean(series.subject), pid, peer)
        count = len(series.values)
        for index, value in enumerate(series.values):
            if not math.isnan(value):
                yield *named, earlier(taken, (count - 1 - index) * history.interval_ms), value


def _findings(host: _Host) -> _Rows:
    for place, verdict in enumerate(standing(host.snapshot)):
        yield place, *_values(verdict)


@functools.cache
def _fields(descriptor: Descriptor) -> tuple[_Field, ...]:
    return tuple(_field(field) for field in descriptor.fields)


def _columns(descriptor: Descriptor) -> _Columns:
    return [(field.name, field.kind) for field in _fields(descriptor)]


def _values(message: Message) -> list[Any]:
    return [field.read(message) for field in _fields(message.DESCRIPTOR)]


def _field(field: FieldDescriptor) -> _Field:
    name = field.name
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _Field(
            name=name,
            kind=pa.map_(pa.string(), pa.string()),
            read=lambda message: [(clean(key), clean(value)) for key, value in getattr(message, name).items()],
        )
    kind, one = _one(field)
    if is_repeated(field):
        return _Field(
            name=name, kind=pa.list_(kind), read=lambda message: [one(each) for each in getattr(message, name)]
        )
    if field.has_presence:
        return _Field(
            name=name,
            kind=kind,
            read=lambda message: one(getattr(message, name)) if message.HasField(name) else None,
        )
    return _Field(name=name, kind=kind, read=lambda message: one(getattr(message, name)))


def _one(field: FieldDescriptor) -> tuple[pa.DataType, Callable[[Any], Any]]:
    """Give the type of one value of a field, and what makes it of the wire's."""
    if field.message_type is not None:
        inner = _fields(field.message_type)
        kind = pa.struct([pa.field(each.name, each.kind) for each in inner])
        return kind, lambda message: {each.name: each.read(message) for each in inner}
    if field.enum_type is not None:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return pa.string(), lambda number: names.get(number, str(number))
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return pa.string(), clean
    return _NUMBERS[field.cpp_type], lambda value: value


def _frame(frame: stacks.Frame) -> str:
    return f"{frame.name} ({frame.file}:{frame.line})" if frame.line else frame.name


def _write(snapshot: snapshot_pb2.Snapshot, columns: _Columns, rows: _Rows) -> bytes:
    meta = snapshot.meta
    own: tuple[str | datetime, ...] = (clean(meta.snapshot_id), clean(meta.host), moment(meta.started_at))
    by_row = list(rows)
    arrays = [pa.array([value] * len(by_row), kind) for value, (_, kind) in zip(own, _SNAPSHOT, strict=True)]
    arrays += [pa.array([row[place] for row in by_row], kind) for place, (_, kind) in enumerate(columns)]
    table = pa.table(arrays, names=[name for name, _ in (*_SNAPSHOT, *columns)])
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _file_name(snapshot: snapshot_pb2.Snapshot) -> str:
    """Name the file after its snapshot: exporting it again replaces it."""
    meta = snapshot.meta
    # Readers pass over names that begin with "_" or ".".
    return _UNSAFE.sub("_", meta.snapshot_id or f"{meta.host}-{meta.started_at}").strip("._-")[:200] or "snapshot"


# Every table: its columns behind those of the snapshot, and its rows.
TABLES: Mapping[str, tuple[_Columns, Callable[[_Host], _Rows]]] = {
    "threads": (
        (
            ("pid", pa.int64()),
            *_PROCESS,
            *_columns(process_pb2.Thread.DESCRIPTOR),
            ("stack", pa.list_(pa.string())),
        ),
        _threads,
    ),
    "sockets": ((*_PROCESS, *_columns(socket_pb2.Socket.DESCRIPTOR)), _sockets),
    "requests": ((*_PROCESS, ("hop", pa.string()), *_columns(request_pb2.Request.DESCRIPTOR)), _requests),
    "tasks": ((*_PROCESS, *_columns(stack_pb2.AsyncioTask.DESCRIPTOR)), _tasks),
    "locks": ((*_PROCESS, *_columns(stack_pb2.Lock.DESCRIPTOR)), _locks),
    "gpus": (_columns(host_pb2.Gpu.DESCRIPTOR), _gpus),
    "series": (
        (
            *_PROCESS,
            ("kind", pa.string()),
            ("subject", pa.string()),
            ("pid", pa.int64()),
            ("peer_pid", pa.int64()),
            ("sampled_at", _MOMENT),
            ("value", pa.float64()),
        ),
        _series,
    ),
    "findings": ((("place", pa.int64()), *_columns(verdict_pb2.Verdict.DESCRIPTOR)), _findings),
}
