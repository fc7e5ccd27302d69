"""The listener for other hosts: mutual TLS in front of one more gRPC server.

TLS ends here and not in gRPC, which tells nobody why a handshake failed, and bounds no connections. Behind the
handshake bytes are copied to the server's unix socket, in a directory (0700) that nobody else may enter. The copy's own
end there is bound to a random name, which is what gRPC calls the peer: by it `caller` knows who calls. Nobody can take
that name from outside, because nobody can know it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import secrets
import socket
from collections import Counter
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any

from freezeframe.agentd import bounded, sockets, tls
from freezeframe.agentd.audit import Audit, Call
from freezeframe.agentd.callers import Caller
from freezeframe.agentd.capabilities import Capability, State
from freezeframe.agentd.config import Remote
from freezeframe.agentd.errors import ConfigError, StartError
from freezeframe.agentd.logs import Logger
from freezeframe.agentd.rates import Rates
from freezeframe.agentd.roles import Role
from freezeframe.agentd.streams import Stream, TlsStream

# Handshakes at once: one more, and the oldest goes.
_MAX_HANDSHAKES = 64
# Connections of one address: so many at once, and per second in the long run.
_BURST, _PER_S = 200.0, 50.0
# How often the files of TLS are looked at.
_LOOK_EVERY_S = 2.0
_BACKLOG = 128
_LAST_PORT = 65535
_SOON_DAYS = 14


def address(remote: Remote, *, insecure: bool) -> tuple[str, int] | None:
    """Where to listen; None for nowhere. Raises ConfigError for what must not be, such as half a TLS setup."""
    files = {"certificate": remote.certificate, "key": remote.key, "client_ca": remote.client_ca}
    given = {"listen": remote.listen, **files}
    lacking = [f"remote.{key}" for key, value in given.items() if not value]
    if insecure:
        return _insecure_address(remote, files)
    if len(lacking) == len(given):
        return None
    if lacking:
        have = ", ".join(f"remote.{key}" for key, value in given.items() if value)
        raise ConfigError(
            f"half a TLS setup: {have} is set, and {', '.join(lacking)} is not",
            "freezeframe-agentd certs init and certs issue make the files; without all of them nothing listens",
        )
    return _parsed(remote.listen)


def _insecure_address(remote: Remote, files: dict[str, str]) -> tuple[str, int]:
    if any(files.values()):
        raise ConfigError("--insecure, and files for TLS: which of them?", "leave one of them away")
    if not remote.listen:
        raise ConfigError("--insecure without remote.listen: nothing would listen", 'listen = "127.0.0.1:7443"')
    host, port = _parsed(remote.listen)
    if not ipaddress.ip_address(host).is_loopback:
        raise ConfigError(
            f"--insecure on {remote.listen}: without TLS only a loopback address may be listened on",
            'listen = "127.0.0.1:7443", or set up TLS: freezeframe-agentd certs init',
        )
    return host, port


def _parsed(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    try:
        found = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port) if port.isascii() and port.isdecimal() else -1
    except ValueError:
        number = -1
    if not 0 <= number <= _LAST_PORT:
        raise ConfigError(f"remote.listen is {listen!r}", 'give ADDRESS:PORT, such as "0.0.0.0:7443" or "[::]:7443"')
    return str(found), number


class Listener:
    """Accepts, asks for a certificate, copies bytes. One per front."""

    def __init__(self, remote: Remote, *, insecure: bool, directory: str, audit: Audit, logger: Logger) -> None:
        """Bind and read the files; serve nothing yet. Raises StartError."""
        where = address(remote, insecure=insecure)
        if where is None:
            raise ConfigError("nothing is configured to listen on")
        self._remote = remote
        self._audit = audit
        self._logger = logger
        self._loaded = None if insecure else tls.load(remote)
        self._wrong = ""
        self._rates = Rates(_BURST, _PER_S)
        self._callers: dict[str, Caller] = {}
        self._open: Counter[str] = Counter()
        self._handshaking: dict[asyncio.Task[None], None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Reads the files: a dead disk may hold it.
        self._reader = ThreadPoolExecutor(1, "tls-files")
        sockets.prepare_directory(directory)
        os.chmod(directory, 0o700)
        self._directory = directory
        # Of the gRPC server behind.
        self.path = os.path.join(directory, "agent.sock")
        sockets.check_length(self._own_end())
        sockets.claim(self.path)
        self._socket = _bind(where)
        self.port: int = self._socket.getsockname()[1]

    def caller(self, peer: str) -> Caller:
        """Say who is behind what gRPC calls "unix:PATH"."""
        nobody = Caller(
            who="a connection that has ended", role=None, grant="its connection has ended", remedy="try again"
        )
        return self._callers.get(peer.removeprefix("unix:"), nobody)

    def capability(self) -> Capability:
        """What `doctor` tells of it."""
        where = f"listens on {self._remote.listen}"
        if self._loaded is None:
            return Capability(
                name="TCP", state=State.LIMITED, detail=f"{where} without TLS: whoever is on this host may capture",
                hint="leave --insecure away, and set up TLS: freezeframe-agentd certs init",
            )  # fmt: skip
        days = (self._loaded.ends - datetime.now(tz=timezone.utc)).days
        detail = f"{where}; the certificate of {self._loaded.name} ends {self._loaded.ends:%Y-%m-%d}"
        if self._wrong:
            return Capability(
                name="TLS", state=State.LIMITED, detail=f"{detail}; newer files are not used: {self._wrong}",
                hint="mend the files of [remote] in agentd.toml",
            )  # fmt: skip
        if days < _SOON_DAYS:
            return Capability(
                name="TLS", state=State.LIMITED if days >= 0 else State.ABSENT, detail=detail,
                hint="freezeframe-agentd certs issue --force; the new one is used without a restart",
            )  # fmt: skip
        return Capability(name="TLS", state=State.PRESENT, detail=detail)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Accept for as long as the block runs."""
        accepting = [asyncio.ensure_future(self._accept())]
        if self._loaded is not None:
            accepting.append(asyncio.ensure_future(self._look_at_files()))
        self._logger.info("listening", address=self._remote.listen, port=self.port, tls=self._loaded is not None)
        try:
            yield
        finally:
            self._socket.close()
            tasks = [*accepting, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._reader.shutdown(wait=False)

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, source = await loop.sock_accept(self._socket)
            except OSError as error:
                self._logger.warning("accepting a connection", detail=str(error))
                await asyncio.sleep(0.1)
                continue
            peer = f"{source[0]}:{source[1]}" if ":" not in source[0] else f"[{source[0]}]:{source[1]}"
            if not self._rates.take(source[0]):
                connection.close()
                self._refused(f"tcp {peer}", "RESOURCE_EXHAUSTED", f"more than {_PER_S:g} connections a second")
                continue
            if len(self._handshaking) >= _MAX_HANDSHAKES:
                next(iter(self._handshaking)).cancel()
            task = asyncio.ensure_future(self._serve(connection, peer))
            self._handshaking[task] = None
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._handshaking.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._logger.error("a connection failed", exc_info=error)

    async def _serve(self, connection: socket.socket, peer: str) -> None:
        with contextlib.ExitStack() as stack:
            try:
                near = await self._handshake(connection)
            except (OSError, EOFError, asyncio.TimeoutError) as error:
                self._refused(f"tcp {peer}", "UNAUTHENTICATED", tls.cause(error))
                return
            except asyncio.CancelledError:
                self._refused(f"tcp {peer}", "RESOURCE_EXHAUSTED", "others came while its handshake did not end")
                raise
            finally:
                task = asyncio.current_task()
                if task is not None:
                    self._handshaking.pop(task, None)
            stack.callback(near.close)
            caller = self._identified(near.certificate(), peer)
            if (full := self._full(caller)) != "":
                self._refused(caller.who, "RESOURCE_EXHAUSTED", full)
                return
            self._open[caller.rated] += 1
            try:
                await self._copy(near, caller)
            finally:
                self._open[caller.rated] -= 1

    async def _handshake(self, connection: socket.socket) -> Stream:
        plain = await Stream.of(connection)
        if self._loaded is None:
            return plain
        secured = TlsStream(plain, self._loaded.context)
        try:
            await bounded.wait(secured.handshake(), self._remote.handshake_s)
        except BaseException:
            plain.close()
            raise
        return secured

    def _identified(self, certificate: dict[str, Any], peer: str) -> Caller:
        if self._loaded is None:
            return Caller(
                who=f"tcp {peer}", rated="this host", role=Role.CAPTURE,
                grant="a connection without TLS has capture", remedy="use {role}.sock on that host",
            )  # fmt: skip
        identity = tls.identity(certificate)
        has = f"has {identity.role.label}" if identity.role is not None else "names no role"
        return Caller(
            who=f"tls {identity.name} {peer}",
            rated=identity.name,
            role=identity.role,
            grant=f"the certificate of {identity.name} {has}",
            remedy=f"have one issued: freezeframe-agentd certs issue --role {{role}} {identity.name}",
        )

    def _full(self, caller: Caller) -> str:
        most = self._remote.max_connections
        if self._open.total() >= most:
            return f"{most} connections are open already"
        if self._open[caller.rated] >= most // 4:
            return f"{most // 4} connections of {caller.rated} are open already"
        return ""

    def _own_end(self) -> str:
        return os.path.join(self._directory, secrets.token_hex(8))

    async def _copy(self, near: Stream, caller: Caller) -> None:
        """Copy both ways until one of them ends."""
        name = self._own_end()
        behind = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            behind.setblocking(False)
            behind.bind(name)
            self._callers[name] = caller
            # The name stays with the socket.
            os.unlink(name)
            await asyncio.get_running_loop().sock_connect(behind, self.path)
            far = await Stream.of(behind)
            ways = [asyncio.ensure_future(_copied(near, far)), asyncio.ensure_future(_copied(far, near))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                far.close()
        except OSError as error:
            self._logger.warning("reaching the server behind the listener", detail=str(error))
            behind.close()
        finally:
            self._callers.pop(name, None)

    def _refused(self, who: str, outcome: str, detail: str) -> None:
        self._audit.record(Call(who=who, rpc="connect", outcome=outcome, detail=detail))

    async def _look_at_files(self) -> None:
        """Take new certificates into use; connections that are open go on."""
        loop = asyncio.get_running_loop()
        tried = self._loaded.state if self._loaded is not None else ()
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                state = await loop.run_in_executor(self._reader, tls.state_of, self._remote)
                if state == tried:
                    continue
                self._loaded = await loop.run_in_executor(self._reader, tls.load, self._remote)
            except OSError as error:
                self._complain(f"{error.filename}: {error.strerror}")
            except StartError as error:
                tried = state
                self._complain(error.detail)
            else:
                tried = self._loaded.state
                self._wrong = ""
                self._logger.info("new certificates are in use", name=self._loaded.name, ends=f"{self._loaded.ends}")

    def _complain(self, detail: str) -> None:
        if detail != self._wrong:
            self._logger.error("new certificates are not used", detail=detail)
        self._wrong = detail


async def _copied(source: Stream, sink: Stream) -> None:
    # However a connection ends, it has ended.
    with contextlib.suppress(OSError):
        while data := await source.read():
            await sink.write(data)


def _bind(where: tuple[str, int]) -> socket.socket:
    family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
    try:
        listening = socket.create_server(where, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise StartError(
            f"listening on {where[0]}:{where[1]}: {error.strerror}", "choose another remote.listen, or free that port"
        ) from error
    listening.setblocking(False)
    return listening
