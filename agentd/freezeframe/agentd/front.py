"""The front: one gRPC server per role on a unix socket each, the store, the captures. Nothing here may block.

It reads no target, starts no process and holds no capability while it serves: workers of the launcher do that. So it
answers when everything else hangs. Whoever composes an agent, the daemon, `--once` or a test, calls `serve`.
"""

from __future__ import annotations

import os

# Read when grpc is imported. The front never forks; with fork support, gRPC's handlers would cost and hang.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import argparse
import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

import grpc
from grpc_health.v1 import health, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from freezeframe.agentd import bounded, logs, remote, sockets
from freezeframe.agentd.audit import Audit
from freezeframe.agentd.audit_file import AuditFile
from freezeframe.agentd.callers import Callers, of_socket
from freezeframe.agentd.config import Config, in_force
from freezeframe.agentd.errors import StartError
from freezeframe.agentd.guard import Guard
from freezeframe.agentd.logs import Logger, LogWriter
from freezeframe.agentd.remote import Listener
from freezeframe.agentd.roles import SERVICE, Role
from freezeframe.agentd.service import CaptureServicer, Parts
from freezeframe.v1 import service_pb2_grpc

# Time for calls in progress when the agent stops.
_GRACE_S = 2.0

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", 1024 * 1024),
    # Chunks are 1 MiB; a list of manifests may be larger.
    ("grpc.max_send_message_length", 32 * 1024 * 1024),
    # A connection that says nothing is closed.
    ("grpc.server_handshake_timeout_ms", 2_000),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Clients behind a NAT ping once a minute.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 30_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_concurrent_streams", 100),
    ("grpc.so_reuseport", 0),
)
# Bounds memory only. The bound on calls of ours is the guard's, so that health checks always find room.
_MAX_CONCURRENT_RPCS = 1000


class Composed(Protocol):
    """What `compose` gives: an agent's parts, alive while the context is."""

    @property
    def parts(self) -> Parts:
        """What the service answers from."""

    def on_bound(self) -> None:
        """Drop privileges: the sockets are bound, nothing is served yet."""

    def on_ready(self) -> None:
        """Tell whoever started the front that it serves."""


Compose = Callable[
    [Config, int | None, Logger, Audit, Listener | None], contextlib.AbstractAsyncContextManager[Composed]
]


async def serve(
    config: Config,
    parts: Parts,
    *,
    logger: Logger,
    audit: Audit,
    stop: asyncio.Event,
    on_bound: Callable[[], None] = lambda: None,
    on_ready: Callable[[], None] = lambda: None,
    listener: Listener | None = None,
) -> None:
    """Serve `view.sock`, `capture.sock` and `admin.sock` in the runtime directory, and `listener`, until `stop`.

    `on_bound` is called when the sockets are bound and before anything is served: privileges are dropped there.
    Raises SocketRefusedError, SocketInUseError.
    """
    sockets.prepare_directory(config.runtime_dir)
    paths = {role: os.path.join(config.runtime_dir, f"{role.label}.sock") for role in Role}
    for path in paths.values():
        sockets.claim(path)
    async with contextlib.AsyncExitStack() as stack:
        servers = []
        healths = []
        for role, path in paths.items():
            server, servicer_health = _server(parts, of_socket(role), audit, logger)
            stack.callback(_bind(server, path))
            sockets.give_to_group(path, getattr(config.groups, role.label))
            servers.append(server)
            healths.append(servicer_health)
        if listener is not None:
            server, servicer_health = _server(parts, listener.caller, audit, logger)
            stack.callback(_bind(server, listener.path))
            servers.append(server)
            healths.append(servicer_health)
        on_bound()
        stack.push_async_callback(_stop, servers, healths, parts, audit)
        for server in servers:
            await server.start()
        if listener is not None:
            await stack.enter_async_context(listener.serving())
        logger.info("serving", runtime_dir=config.runtime_dir, state_dir=config.state_dir)
        on_ready()
        await stop.wait()
        logger.info("stopping")


def _bind(server: grpc.aio.Server, path: str) -> Callable[[], None]:
    """Bind a unix socket; gives what removes it."""
    with sockets.binding():
        server.add_insecure_port(f"unix:{path}")
    identity = sockets.identity(path)
    return lambda: sockets.remove(path, identity)


def _server(
    parts: Parts, callers: Callers, audit: Audit, logger: Logger
) -> tuple[grpc.aio.Server, health.aio.HealthServicer]:
    guard = Guard(callers, audit, logger)
    server = grpc.aio.server(interceptors=[guard], options=OPTIONS, maximum_concurrent_rpcs=_MAX_CONCURRENT_RPCS)
    service_pb2_grpc.add_CaptureServiceServicer_to_server(CaptureServicer(parts, callers), server)
    servicer_health = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer_health, server)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    return server, servicer_health


async def _stop(
    servers: Sequence[grpc.aio.Server], healths: Sequence[health.aio.HealthServicer], parts: Parts, audit: Audit
) -> None:
    """Let calls end for a moment, then end them."""
    # A watcher that does not read could hold this up.
    with contextlib.suppress(asyncio.TimeoutError):
        await bounded.wait(asyncio.gather(*(each.enter_graceful_shutdown() for each in healths)), 0.5)
    stopping = [asyncio.ensure_future(server.stop(_GRACE_S)) for server in servers]
    await asyncio.wait(stopping, timeout=_GRACE_S / 2)
    await parts.captures.stop()
    await asyncio.wait(stopping, timeout=_GRACE_S)
    if parts.store is not None:
        parts.store.close()
    audit.flush()


def main(compose: Compose, argv: Sequence[str] | None = None, *, listens: bool = True) -> int:
    """Run the front until SIGTERM or SIGINT; gives the exit code.

    Without `listens` it serves this host alone, and writes no file of the daemon's. `compose` makes engine, store and
    captures from the configuration and the descriptor to the launcher. Leave the process with os._exit afterwards: a
    store thread that a dead disk holds would keep it.
    """
    parser = argparse.ArgumentParser(prog="freezeframe-agentd front")
    parser.add_argument("--control-fd", type=int)
    parser.add_argument("--config")
    parser.add_argument("--runtime-dir")
    parser.add_argument("--state-dir")
    parser.add_argument("--insecure", action="store_true")
    arguments = parser.parse_args(argv)
    try:
        config = in_force(arguments.config, runtime_dir=arguments.runtime_dir, state_dir=arguments.state_dir)
    except StartError as error:
        print(f"{error.detail}\n{error.hint}".strip(), file=sys.stderr)  # noqa: T201 - no log yet
        return 1
    logger, writer = logs.start(config.log_level)
    calls = writer
    try:
        if config.audit.file and listens:
            calls = LogWriter(AuditFile(config.audit, writer, logger))
        # Calls are written whatever the level is.
        audit = Audit(logs.make_logger(calls, terminal=False))
        listener = make_listener(config, audit, logger, insecure=arguments.insecure) if listens else None
        asyncio.run(
            _run(config, compose(config, arguments.control_fd, logger, audit, listener), logger, audit, listener)
        )
    except StartError as error:
        logger.error("cannot start", detail=error.detail, hint=error.hint)  # noqa: TRY400 - the sentence says it
        return 1
    except Exception:
        logger.exception("the front failed")
        return 1
    finally:
        calls.drain(1.0)
        writer.drain(1.0)
    return 0


async def _run(
    config: Config,
    composing: contextlib.AbstractAsyncContextManager[Composed],
    logger: Logger,
    audit: Audit,
    listener: Listener | None,
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with composing as composed:
        await serve(
            config,
            composed.parts,
            logger=logger,
            audit=audit,
            stop=stop,
            on_bound=composed.on_bound,
            on_ready=composed.on_ready,
            listener=listener,
        )


def make_listener(config: Config, audit: Audit, logger: Logger, *, insecure: bool) -> Listener | None:
    """Make what listens for other hosts, if anything does. Raises StartError."""
    if remote.address(config.remote, insecure=insecure) is None:
        return None
    sockets.prepare_directory(config.runtime_dir)
    directory = os.path.join(config.runtime_dir, "remote")
    return Listener(config.remote, insecure=insecure, directory=directory, audit=audit, logger=logger)
