"""What stands before every call: role, bound, audit line, and errors as statuses. The servicer behind it only answers.

Requests arrive here as bytes, so that one that cannot be decoded is refused and audited like any other. Health and
reflection pass untouched: they must answer when everything else is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from freezeframe.agentd.audit import Audit, Call
from freezeframe.agentd.callers import Caller, Callers
from freezeframe.agentd.errors import AgentError, BadRequestError, BusyError, NotSupportedError, RoleRequiredError
from freezeframe.agentd.logs import Logger
from freezeframe.agentd.rates import Rates
from freezeframe.agentd.roles import MINIMUM_ROLE, SERVICE, allowed
from freezeframe.agentd.statuses import METADATA_KEY, status_of

OPEN_SERVICES = (
    "grpc.health.v1.Health",
    "grpc.reflection.v1alpha.ServerReflection",
    "grpc.reflection.v1.ServerReflection",
)

_Context = grpc.aio.ServicerContext[Any, Any]


# Calls of one certificate: so many at once, and per second in the long run.
_BURST, _PER_S = 200.0, 50.0


class Guard(grpc.aio.ServerInterceptor):
    """One per server; `callers` knows who is behind a connection."""

    def __init__(
        self, callers: Callers, audit: Audit, logger: Logger, *, max_calls: int = 64, write_timeout_s: float = 30.0
    ) -> None:
        """At most `max_calls` at once; a caller that takes no message for `write_timeout_s` is let go."""
        self._callers = callers
        self._rates = Rates(_BURST, _PER_S)
        self._audit = audit
        self._logger = logger
        self._max_calls = max_calls
        self._write_timeout_s = write_timeout_s
        self._calls = 0

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Wrap the handler of a call of ours."""
        service, _, rpc = handler_call_details.method.removeprefix("/").rpartition("/")
        handler = await continuation(handler_call_details)
        if service in OPEN_SERVICES and handler is not None:
            return handler
        if service != SERVICE or rpc not in MINIMUM_ROLE or handler is None:
            return grpc.unary_unary_rpc_method_handler(self._unknown(handler_call_details.method))
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                self._streaming(rpc, handler), response_serializer=handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            self._unary(rpc, handler), response_serializer=handler.response_serializer
        )

    def _unknown(self, method: str) -> Callable[[bytes, _Context], Awaitable[bytes]]:
        async def answer(_request: bytes, context: _Context) -> bytes:
            async with self._audited(method[-200:], context):
                raise NotSupportedError("this agent has no such call", "client and agent may differ in version")

        return answer

    def _unary(self, rpc: str, handler: Any) -> Callable[[bytes, _Context], Awaitable[Message]]:
        async def answer(data: bytes, context: _Context) -> Message:
            async with self._audited(rpc, context) as tally:
                request = self._decode(handler, data, tally)
                with self._admitted(rpc, tally.caller):
                    response: Message = await handler.unary_unary(request, context)
                    tally.sent_bytes += response.ByteSize()
            return response

        return answer

    def _streaming(self, rpc: str, handler: Any) -> Callable[[bytes, _Context], Awaitable[None]]:
        async def answer(data: bytes, context: _Context) -> None:
            async with self._audited(rpc, context) as tally:
                request = self._decode(handler, data, tally)
                with self._admitted(rpc, tally.caller):
                    try:
                        async with contextlib.aclosing(handler.unary_stream(request, context)) as responses:
                            async for response in responses:
                                await self._write(context, response)
                                tally.sent_bytes += response.ByteSize()
                    except _StalledError as stalled:
                        # All that the call held is free by now. gRPC takes a status only behind the message that the
                        # caller does not take, and offers no way to drop the call.
                        await asyncio.wait([stalled.writing])
                        raise BusyError(
                            f"nothing was taken for {self._write_timeout_s:g} s", "read the stream without a pause"
                        ) from None

        return answer

    @contextlib.asynccontextmanager
    async def _audited(self, rpc: str, context: _Context) -> AsyncIterator[_Tally]:
        """Write the audit line of what happens inside, and end the call with the status of its error."""
        tally = _Tally(caller=self._callers(context.peer()))
        begin = time.monotonic()
        outcome, detail = "CANCELLED", ""
        try:
            self._count(tally.caller)
            yield tally
            outcome = "OK"
        except Exception as error:  # The boundary: whatever it is becomes a status.
            code, info = status_of(error)
            outcome, detail = code.name, info.detail
            if not isinstance(error, AgentError):
                self._logger.exception("call failed", rpc=rpc)
            await context.abort(code, info.detail, ((METADATA_KEY, info.SerializeToString()),))
        finally:
            self._audit.record(
                Call(
                    who=tally.caller.who,
                    rpc=rpc,
                    targets=tally.targets,
                    outcome=outcome,
                    detail=detail,
                    sent_bytes=tally.sent_bytes,
                    duration_ms=(time.monotonic() - begin) * 1000.0,
                )
            )

    def _count(self, caller: Caller) -> None:
        """Raise BusyError for one who calls too often."""
        if caller.rated and not self._rates.take(caller.rated):
            raise BusyError(
                f"more than {_PER_S:g} calls a second came from {caller.rated}", "try again in some seconds"
            )

    @contextlib.contextmanager
    def _admitted(self, rpc: str, caller: Caller) -> Iterator[None]:
        """Hold one of the places. Raises RoleRequiredError, BusyError."""
        if not allowed(caller.role, rpc):
            needed = MINIMUM_ROLE[rpc].label
            raise RoleRequiredError(f"{rpc} needs the role {needed}; {caller.grant}", caller.remedy.format(role=needed))
        if self._calls >= self._max_calls:
            raise BusyError(f"{self._max_calls} calls are open already", "try again in some seconds")
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    @staticmethod
    def _decode(handler: Any, data: bytes, tally: _Tally) -> Message:
        try:
            request: Message = handler.request_deserializer(data)
        except DecodeError as error:
            raise BadRequestError(f"decoding the request of {len(data):,} bytes: {error}") from error
        tally.targets = _targets(request)
        return request

    async def _write(self, context: _Context, response: Message) -> None:
        writing = asyncio.ensure_future(context.write(response))
        # Seen here, also when nobody waits for it any more.
        writing.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait([writing], timeout=self._write_timeout_s)
        if not writing.done():
            raise _StalledError(writing)
        writing.result()


class _StalledError(Exception):
    """A caller does not read what it asked for."""

    def __init__(self, writing: asyncio.Future[None]) -> None:
        super().__init__()
        self.writing = writing


@dataclass(slots=True)
class _Tally:
    """What the audit line tells of a call."""

    caller: Caller
    targets: tuple[str, ...] = ()
    sent_bytes: int = 0


_MAX_TARGETS = 20


def _targets(request: Any) -> tuple[str, ...]:
    """Name what a request is about."""
    found = [f"pid {pid}" for pid in getattr(request, "pids", ())]
    named = ("client_pid", "client_address", "snapshot_id", "name")
    found += [f"{name} {value}" for name in named if (value := getattr(request, name, None))]
    found += [f"only {name}" for name in getattr(request, "only", ())]
    found += [f"skip {name}" for name in getattr(request, "skip", ())]
    if hasattr(request, "schedule"):
        found.append(f"schedule {request.schedule.name}")
    if len(found) > _MAX_TARGETS:
        found = [*found[:_MAX_TARGETS], f"{len(found) - _MAX_TARGETS} more"]
    return tuple(text[:200] for text in found)
