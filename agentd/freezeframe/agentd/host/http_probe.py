"""Ask a few HTTP endpoints of this host at once, each under the same short deadline, and give up on any that is silent.

Plain HTTP/1.1, GET, one answer per connection. Nothing is followed, no credential is sent, no answer is waited for past
the deadline, whether the server is silent, trickles or never ends. The User-Agent names freezeframe, so that the
server's own log shows who asked.

Over IPv4 the connection comes from PROBE_SOURCE, whichever address of the host is asked: a server that never accepts
keeps it in its accept queue long after the agent has given up, and by this address it can be told from a client's.
"""

from __future__ import annotations

import errno
import http.client
import io
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from freezeframe.agentd.host import netns

PROBE_SOURCE = "127.70.70.70"
USER_AGENT = "freezeframe-agentd"

_RECEIVE_BYTES = 256 * 1024
_HEAD_BYTES = 64 * 1024
_TLS_ALERT = b"\x15\x03"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One endpoint: an address of this host and a path."""

    host: str
    port: int
    path: str
    # File of the network namespace in which that address is ("/proc/4711/ns/net"); empty for the agent's own.
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came, and how long it took."""

    # HTTP status; 0 when no answer came.
    status: int = 0
    # Until the answer was whole, or was given up, milliseconds.
    duration_ms: float = 0.0
    # Why there is no (whole) answer; empty when there is.
    error: str = ""
    # Body; up to the cap, and less than all of it when `error` says so.
    body: bytes = b""


class Prober:
    """Asks any number of questions at once; more may be added while the answers come."""

    def __init__(
        self,
        *,
        timeout_s: float = 1.0,
        body_bytes: int = 4 * 1024 * 1024,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Each question has `timeout_s` from its start to the end of its answer, of which `body_bytes` are kept."""
        self._timeout_s = timeout_s
        self._body_bytes = body_bytes
        self._monotonic = monotonic
        # Not begun yet, with when to begin.
        self._later: list[tuple[float, Question]] = []

    def ask(self, question: Question, *, delay_s: float = 0.0) -> None:
        """Have this asked, at once or after a while."""
        self._later.append((self._monotonic() + delay_s, question))

    def answers(self) -> Iterator[tuple[Question, Answer]]:
        """Give each answer when it is there or given up; ends when nothing is left. Never raises for a server."""
        with selectors.DefaultSelector() as selector:
            try:
                while self._later or selector.get_map():
                    yield from self._begin(selector)
                    yield from self._advance(selector)
            finally:
                for key in list(selector.get_map().values()):
                    key.data.socket.close()

    def _begin(self, selector: selectors.BaseSelector) -> Iterator[tuple[Question, Answer]]:
        now = self._monotonic()
        due = [question for when, question in self._later if when <= now]
        self._later = [(when, question) for when, question in self._later if when > now]
        for question in due:
            exchange = _Exchange(question, self._body_bytes, now)
            if exchange.ended:
                yield question, self._close(exchange)
            else:
                selector.register(exchange.socket, selectors.EVENT_WRITE, exchange)

    def _advance(self, selector: selectors.BaseSelector) -> Iterator[tuple[Question, Answer]]:
        """Wait for the next thing to happen, and do what the sockets are ready for."""
        exchanges: list[_Exchange] = [key.data for key in selector.get_map().values()]
        if not exchanges and not self._later:
            return
        nearest = [when for when, _ in self._later] + [each.begun + self._timeout_s for each in exchanges]
        wait = max(0.0, min(nearest) - self._monotonic())
        for key, _ in selector.select(wait):
            exchange = key.data
            exchange.advance()
            if not exchange.ended and exchange.sent:
                selector.modify(exchange.socket, selectors.EVENT_READ, exchange)
        now = self._monotonic()
        ended = [each for each in exchanges if each.ended or now >= each.begun + self._timeout_s]
        for exchange in ended:
            selector.unregister(exchange.socket)
        # All at once: whoever takes an answer may be long about it.
        yield from [(exchange.question, self._close(exchange)) for exchange in ended]

    def _close(self, exchange: _Exchange) -> Answer:
        exchange.socket.close()
        return exchange.answer((self._monotonic() - exchange.begun) * 1000.0)


class _Exchange:
    """One connection and what has come over it."""

    def __init__(self, question: Question, body_bytes: int, begun: float) -> None:
        self.question = question
        self.begun = begun
        family = socket.AF_INET6 if ":" in question.host else socket.AF_INET
        host = f"[{question.host}]" if family == socket.AF_INET6 else question.host
        request = (
            f"GET {question.path} HTTP/1.1\r\nHost: {host}:{question.port}\r\n"
            f"User-Agent: {USER_AGENT}\r\nAccept: text/plain, application/json\r\nConnection: close\r\n\r\n"
        )
        self._unsent = request.encode("ascii")
        self._limit = body_bytes + _HEAD_BYTES
        self._body_bytes = body_bytes
        self._received = bytearray()
        self._connected = False
        self._failed = ""
        # Offset of the body, and its length where the head tells it.
        self._body = 0
        self._length: int | None = None
        self._chunked = False
        self.ended = False
        kind = socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        try:
            with netns.inside(question.namespace):
                self.socket = socket.socket(family, kind)
        except OSError as error:
            self.socket = socket.socket(family, kind)
            self._fail(error.errno or errno.EIO)
            return
        try:
            if family == socket.AF_INET:
                self.socket.bind((PROBE_SOURCE, 0))
            code = self.socket.connect_ex((question.host, question.port))
        except OSError as error:
            code = error.errno or errno.EIO
        if code not in (0, errno.EINPROGRESS):
            self._fail(code)

    @property
    def sent(self) -> bool:
        """Whether the request is out, so that only reading is left."""
        return not self._unsent

    def advance(self) -> None:
        """Do what the socket is ready for."""
        try:
            if not self._connected:
                code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if code:
                    self._fail(code)
                    return
                self._connected = True
            if self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]
                return
            data = self.socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._fail(error.errno or errno.EIO)
            return
        self._received += data
        self.ended = self._is_whole() or not data or len(self._received) >= self._limit

    def _fail(self, code: int) -> None:
        names = {errno.ECONNREFUSED: "refused", errno.ECONNRESET: "closed without an answer"}
        self._failed = names.get(code, os.strerror(code))
        self.ended = True

    def _is_whole(self) -> bool:
        """Whether the answer ends here, or never will be one, although the server keeps the connection open."""
        if not self._body:
            place = self._received.find(b"\r\n\r\n")
            if place < 0:
                return len(self._received) > _HEAD_BYTES or not self._speaks_http()
            self._body = place + 4
            for line in bytes(self._received[:place]).lower().split(b"\r\n")[1:]:
                name, _, value = line.partition(b":")
                if name == b"content-length" and value.strip().isdigit():
                    self._length = int(value)
                elif name == b"transfer-encoding":
                    self._chunked = value.strip() == b"chunked"
        if self._chunked:
            return self._received.endswith(b"0\r\n\r\n")
        return self._length is not None and len(self._received) - self._body >= self._length

    def _speaks_http(self) -> bool:
        return b"HTTP/1.".startswith(bytes(self._received[:7]))

    def answer(self, duration_ms: float) -> Answer:
        """Say what came in `duration_ms`."""
        received = bytes(self._received)
        if not received:
            if self._failed:
                error = self._failed
            elif self.ended:
                error = "closed without an answer"
            else:
                error = "no answer" if self._connected else "connect timed out"
            return Answer(duration_ms=duration_ms, error=error)
        if received.startswith(_TLS_ALERT):
            return Answer(duration_ms=duration_ms, error="speaks TLS, which is not asked")
        if not self._body:
            slow = not self.ended and self._speaks_http()
            return Answer(duration_ms=duration_ms, error="no whole answer in time" if slow else "does not speak HTTP")
        status, body, whole = _parse(received)
        if not status:
            return Answer(duration_ms=duration_ms, error="does not speak HTTP")
        error = ""
        if len(body) > self._body_bytes or len(received) >= self._limit:
            error = f"answer cut after {self._body_bytes} bytes"
        elif not self.ended:
            error = "no whole answer in time"
        elif not whole:
            error = "answer ended early"
        return Answer(status=status, duration_ms=duration_ms, error=error, body=body[: self._body_bytes])


class _Received(io.BytesIO):
    """What http.client takes for a socket."""

    def makefile(self, _mode: str) -> io.BytesIO:
        return self


def _parse(received: bytes) -> tuple[int, bytes, bool]:
    """Status, body, and whether the body is whole; status 0 for what is not HTTP."""
    # http.client takes anything with makefile() for a socket.
    response = http.client.HTTPResponse(_Received(received), method="GET")  # type: ignore[arg-type]
    try:
        response.begin()
        return response.status, response.read(), True
    except http.client.IncompleteRead as error:
        return response.status, error.partial, False
    except (http.client.HTTPException, ValueError, OSError):
        return 0, b"", False
