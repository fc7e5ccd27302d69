"""The connection and the HTTP request that a task serves, from the locals of its chain.

Known: servers that pass an ASGI `scope` (uvicorn, hypercorn, ...), aiohttp's server, and whoever has the `writer` of an
asyncio stream. Of the request only method, path and the id from a request-id header are read; no other header, no body.
The descriptor is that of the transport: asyncio keeps it, uvloop's is in the handle that points back at the transport.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from freezeframe.agentd.host.cpython.frames import Codes
from freezeframe.agentd.host.cpython.objects import Objects, printable
from freezeframe.agentd.host.cpython.tasks import FoundTask, TaskFrame
from freezeframe.agentd.host.target_memory import UnreadableMemoryError
from freezeframe.agentd.host.text import escape

# Names of headers that carry an id, the first that is there counts.
_ID_HEADERS = (b"x-request-id", b"x-correlation-id", b"x-trace-id", b"request-id", b"traceparent")
# Locals that lead on, and those in which an engine keeps the id that it gave.
_ENGINE_IDS = ("rid", "request_id")
_TELLING = frozenset({"scope", "writer", *_ENGINE_IDS})
# Functions of servers that have all of a request.
_SERVERS = frozenset({"run_asgi", "start"})
_MAX_ID = 256
_MAX_PATH = 4096
_MAX_HEADERS = 256
_AIOHTTP = "aiohttp/web_protocol.py"
# libuv 1.x, whose layout is its ABI: uv_handle_t.data and .type, uv_stream_t.io_watcher.fd.
_UV_TYPE, _UV_FD, _UV_BYTES = 16, 184, 192
_UV_PIPE, _UV_TCP = 7, 12
_MAX_TRANSPORT_BYTES = 1024
_MAX_FD = 1 << 24
_WORD = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What one task serves, as far as it was found; text is escaped."""

    fd: int | None = None
    # "127.0.0.1:4711", as the framework has it: behind a proxy it may be the proxy's client.
    peer: str = ""
    method: str = ""
    path: str = ""
    request_id: str = ""
    engine_request_id: str = ""


_NOTHING = Served()


def find_served(tasks: Sequence[FoundTask], objects: Objects, codes: Codes) -> dict[int, Served]:
    """Give, by the address of a task, what it serves. `objects` reads what does not change meanwhile.

    Raises TargetMemoryError for what ends every read.
    """
    found = {}
    for task in tasks:
        if task.doubt or not task.frames:
            continue
        served = _Search(objects, codes).of(task)
        if served != _NOTHING:
            found[task.address] = served
    return found


def inherit(served: Served, parent: Served) -> Served:
    """What a task serves that another one, serving `parent`, waits for."""
    own = {field: value for field in _FIELDS if (value := getattr(served, field)) not in {None, ""}}
    return replace(parent, **own)


_FIELDS = ("fd", "peer", "method", "path", "request_id", "engine_request_id")


class _Search:
    def __init__(self, objects: Objects, codes: Codes) -> None:
        self._objects = objects
        self._memory = objects.memory
        self._codes = codes

    def of(self, task: FoundTask) -> Served:
        served = _NOTHING
        for frame in task.frames:
            function = frame.code.name
            try:
                names = self._codes.names(frame.code)
                if function not in _SERVERS and _TELLING.isdisjoint(names):
                    continue
                if function == "run_asgi" and "self" in names:
                    served = inherit(served, self._of_cycle(frame))
                elif function == "start" and frame.place.file.endswith(_AIOHTTP):
                    # Between two requests it waits for a future; `message` is still that of the last one then.
                    idle = frame is task.frames[-1] and task.awaits == "Future"
                    served = inherit(served, self._of_aiohttp(frame, idle=idle))
                elif not served.method and "scope" in names:
                    served = inherit(served, self._of_scope(self._local(frame, "scope")))
                elif served.fd is None and "writer" in names:
                    served = inherit(served, self._of_writer(self._local(frame, "writer")))
                ids = [name for name in _ENGINE_IDS if name in names]
                if ids and not served.engine_request_id:
                    served = replace(served, engine_request_id=self._engine_id(frame, ids))
            except UnreadableMemoryError:
                continue  # what it serves is not known from this frame
        return served

    def _local(self, frame: TaskFrame, name: str) -> int:
        return self._codes.local(frame.address, frame.code, name).get(name, 0)

    def _engine_id(self, frame: TaskFrame, names: Sequence[str]) -> str:
        values = self._codes.local(frame.address, frame.code, *names)
        strings = self._objects.strings([values[name] for name in names if name in values])
        return next((printable(each) for each in strings if each and len(each) <= _MAX_ID), "")

    # Servers

    def _of_cycle(self, frame: TaskFrame) -> Served:
        """uvicorn: the request and its transport."""
        attributes = self._objects.attributes(self._local(frame, "self"))
        served = self._of_scope(attributes.get("scope", 0))
        return replace(served, fd=self._descriptor(attributes.get("transport", 0)))

    def _of_scope(self, scope: int) -> Served:
        objects = self._objects
        if not scope or not objects.is_dict(scope):
            return _NOTHING
        values = objects.mapping(scope)
        if not {"type", "path"} <= set(values):
            return _NOTHING
        return Served(
            method=self._text(values.get("method", 0), 64),
            path=self._text(values["path"], _MAX_PATH).partition("?")[0],
            peer=self._address(values.get("client", 0)),
            request_id=self._id_of(values.get("headers", 0)),
        )

    def _of_aiohttp(self, frame: TaskFrame, *, idle: bool) -> Served:
        objects = self._objects
        values = self._codes.local(frame.address, frame.code, "self", "message")
        handler, message = values.get("self", 0), values.get("message", 0)
        served = Served(fd=self._descriptor(objects.attribute(handler, "transport"))) if handler else _NOTHING
        if idle or not message or objects.type_of(message).name != "RawRequestMessage":
            return served
        if objects.is_instance(self._memory.word(message + 8), objects.types["tuple"]):
            members = objects.sequence(message)
        else:  # the members of the class in C, in the same order
            members = list(struct.unpack("<5Q", self._memory.read(message + 16, 40)))
        method, path, _version, _headers, raw_headers = members[:5]
        return replace(
            served,
            method=self._text(method, 64),
            path=self._text(path, _MAX_PATH).partition("?")[0],
            request_id=self._id_of(raw_headers),
        )

    def _of_writer(self, writer: int) -> Served:
        if not writer or self._objects.type_of(writer).name != "StreamWriter":
            return _NOTHING
        return Served(fd=self._descriptor(self._objects.attribute(writer, "_transport")))

    # Values

    def _text(self, address: int, limit: int) -> str:
        value = self._objects.strings([address])[0] if address else None
        return printable(value) if value is not None and len(value) <= limit else ""

    def _address(self, client: int) -> str:
        """ASGI's client: (host, port), or nothing."""
        if not client:
            return ""
        try:
            host, port, *_ = self._objects.sequence(client)
            name = self._text(host, 64)
            return f"[{name}]:{self._objects.integer(port)}" if ":" in name else f"{name}:{self._objects.integer(port)}"
        except (UnreadableMemoryError, ValueError):
            return ""

    def _id_of(self, headers: int) -> str:
        """The value of a request-id header in a sequence of (name, value), both bytes."""
        if not headers:
            return ""
        objects, layout = self._objects, self._objects.layout
        try:
            pairs = objects.sequence(headers)[:_MAX_HEADERS]
        except UnreadableMemoryError:
            return ""
        items = [
            struct.unpack("<2Q", data) if data is not None else (0, 0)
            for data in self._memory.read_many([(pair + layout["tuple.items"], 16) for pair in pairs])
        ]
        start = layout["bytes.data"]
        names = self._memory.read_many([(name + layout["sized.size"], start + 16) for name, _ in items])
        found: dict[bytes, int] = {}
        for (_, value), data in zip(items, names, strict=True):
            if data is None:
                continue
            (size,) = _WORD.unpack_from(data)
            name = data[start - layout["sized.size"] :][:size].lower()
            if len(name) == size and name in _ID_HEADERS:
                found.setdefault(name, value)
        for name in _ID_HEADERS:
            if name in found:
                return escape(objects.data(found[name], _MAX_ID))
        return ""

    # Transports

    def _descriptor(self, transport: int, *, depth: int = 0) -> int | None:
        objects = self._objects
        if not transport or depth > 2:
            return None
        kind = objects.type_of(transport)
        attributes = objects.attributes(transport)
        if "_sock_fd" in attributes:
            return _sane(objects.integer(attributes["_sock_fd"]))
        if "_ssl_protocol" in attributes:
            protocol = objects.attributes(attributes["_ssl_protocol"])
            return self._descriptor(protocol.get("_transport", 0), depth=depth + 1)
        return self._uv_descriptor(transport, min(kind.basicsize, _MAX_TRANSPORT_BYTES))

    def _uv_descriptor(self, transport: int, size: int) -> int | None:
        """uvloop: a member points to a uv_handle_t whose data is the transport."""
        count = size // 8
        words = struct.unpack(f"<{count}Q", self._memory.read(transport, 8 * count))[2:]
        handles = [word for word in words if word and not word & 7]
        for data in self._memory.read_many([(handle, _UV_BYTES) for handle in handles]):
            if data is None or _WORD.unpack_from(data)[0] != transport:
                continue
            (kind,) = struct.unpack_from("<i", data, _UV_TYPE)
            if kind in {_UV_PIPE, _UV_TCP}:
                return _sane(struct.unpack_from("<i", data, _UV_FD)[0])
        return None


def _sane(descriptor: int) -> int | None:
    return descriptor if 0 <= descriptor < _MAX_FD else None
