"""What the front is made of: the only place that constructs engine, workers, store and captures.

Run by the supervisor as `python -m freezeframe.agentd.composition ... --control-fd N`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial

from freezeframe.agentd import capabilities, channel, front, privileges
from freezeframe.agentd.audit import Audit
from freezeframe.agentd.captures import Captures
from freezeframe.agentd.channel import INTRODUCTION
from freezeframe.agentd.collectors import COLLECTORS
from freezeframe.agentd.collectors.watch_gauges import WATCH_GAUGES
from freezeframe.agentd.collectors.watch_gpus import WATCH_GPUS
from freezeframe.agentd.config import Config, Copy
from freezeframe.agentd.engine import Engine
from freezeframe.agentd.errors import AgentError, StartError, StoreFailedError
from freezeframe.agentd.host import Host
from freezeframe.agentd.logs import Logger
from freezeframe.agentd.metrics import Metrics
from freezeframe.agentd.metrics import serve as serve_metrics
from freezeframe.agentd.overrides import overrides
from freezeframe.agentd.past import Past
from freezeframe.agentd.pidfds import Held
from freezeframe.agentd.remote import Listener
from freezeframe.agentd.schedules.feed import Feed
from freezeframe.agentd.schedules.files import Files
from freezeframe.agentd.schedules.hooks import Hooks
from freezeframe.agentd.schedules.runner import Schedules
from freezeframe.agentd.service import Parts
from freezeframe.agentd.store import Copier, Copying, Folder, Store
from freezeframe.agentd.watching import Watching
from freezeframe.agentd.workers import Workers
from freezeframe.judge import SCHEMA
from freezeframe.judge.correlate.roles import serving_processes
from freezeframe.judge.model import Meta, Metric, Process, Socket
from freezeframe.judge.verdicts import conclude

# Command lines are learnt before trouble starts: at start, and then so often.
_WARM_EVERY_S = 60.0
_ONCE = "--once"
# What a place for copies begins with that is a directory.
_DIRECTORY = "file://"
_NO_COPIER = StoreFailedError(
    "snapshots are not copied: the package obstore is not installed", "pip install 'freezeframe[agent,copy]'"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Composed:
    """What `front.serve` needs."""

    parts: Parts
    # Told on standard output when the front serves; empty = nothing is.
    ready_line: str

    def on_bound(self) -> None:
        privileges.drop_all()

    def on_ready(self) -> None:
        if self.ready_line:
            sys.stdout.write(f"{self.ready_line}\n")
            sys.stdout.flush()


@contextlib.asynccontextmanager
async def compose(
    config: Config, control_fd: int | None, logger: Logger, audit: Audit, listener: Listener | None, *, once: bool
) -> AsyncIterator[_Composed]:
    """Construct everything; `once` keeps no snapshot and says when it serves. Raises StartError."""
    if control_fd is None:
        raise StartError("starting the front: it has no supervisor", "start freezeframe-agentd")
    version = importlib.metadata.version("freezeframe")
    host = socket.gethostname()

    def serving(
        processes: Sequence[Process], sockets: Sequence[Socket], metrics: Sequence[Metric]
    ) -> tuple[Process, ...]:
        return serving_processes(processes, sockets, overrides(config.roles, processes), metrics)

    workers = Workers()
    past = Past()
    engine = Engine(
        workers=workers,
        collectors=COLLECTORS,
        serving=serving,
        conclude=conclude,
        hold=Held,
        identity=Meta(
            host=host,
            agent_version=version,
            boot_id=_boot_id(),
            embedded=once,
            schema=SCHEMA,
            usual_clients=config.clients,
        ),
        past=lambda events: (*past.tell(events), *feed.tell()),
    )
    feed = Feed(workers=workers, processes=engine)
    store = None if once else Store(os.path.join(config.state_dir, "snapshots"), config.store)
    copier = _copier(store, config.copy, logger) if store is not None and config.copy.to else None
    probed = capabilities.probe()

    watching = Watching(workers=workers, processes=engine)

    metrics = Metrics(feed, engine)
    captures = Captures(engine, store, config.capture, writer=f"freezeframe-agentd {version}", on_ended=metrics.ended)
    schedules = Schedules(
        captures=captures,
        store=store,
        files=Files(os.path.join(config.state_dir, "schedules")),
        configured=config.schedules,
        collectors=engine.collector_names(),
        logger=logger,
        audit=audit,
        on_captured=Hooks(hooks=config.hooks, workers=workers, audit=audit, host=host).tell,
    )
    problems: list[str] = []

    def on_metrics_problem(sentence: str) -> None:
        problems[:] = [sentence] if sentence else []
        if sentence:
            logger.warning("metrics", error=sentence)

    async def probe() -> Sequence[capabilities.Capability]:
        own = (
            []
            if once
            else [
                capabilities.schedules(len(schedules.listed()), schedules.damage),
                capabilities.metrics(config.metrics, problems),
            ]
        )
        listening = [] if listener is None else [listener.capability()]
        armed = capabilities.recorder(await watching.ask())
        kept = await _probe_store(store, copier, config)
        stacks = capabilities.kernel_stacks(probed, config.kernel_stacks)
        return (*probed, stacks, armed, capabilities.gpus(Host()), *listening, *own, *kept)

    parts = Parts(
        captures=captures,
        store=store,
        limits=config.capture,
        collectors=engine.collector_names(),
        capabilities=probe,
        serving_ports=engine.serving_ports,
        watching=watching,
        schedules=None if once else schedules,
        agent_version=version,
        host=host,
        kernel=os.uname().release,
    )
    control = socket.socket(fileno=control_fd)
    control.setblocking(False)
    loop = asyncio.get_running_loop()
    loop.add_reader(control, _introduced, control, workers)
    lasting: list[Coroutine[None, None, None]] = []
    if not once:
        lasting = [
            _keep_warm(engine, logger),
            past.run(workers, engine, (WATCH_GAUGES, WATCH_GPUS)),
            feed.run(lambda: bool(config.metrics.port) or schedules.has_triggers(), schedules.on_values),
            schedules.run(),
        ]
        if config.metrics.port:
            lasting.append(serve_metrics(config.metrics.address, config.metrics.port, metrics.text, on_metrics_problem))
    if copier is not None:
        lasting.append(copier.run())
    tasks = [asyncio.ensure_future(each) for each in lasting]
    try:
        yield _Composed(parts=parts, ready_line=f"ready {config.runtime_dir}/capture.sock" if once else "")
    finally:
        for task in tasks:
            task.cancel()
        loop.remove_reader(control)
        workers.detach()


async def _probe_store(
    store: Store | None, copier: Copier | None, config: Config
) -> tuple[capabilities.Capability, ...]:
    """Say in what state the store and its copies are."""
    if store is None:
        return ()
    try:
        found = capabilities.store(await store.check(), config.store)
    except AgentError as error:
        found = capabilities.store(error, config.store)
    if not config.copy.to:
        return (found,)
    try:
        copying: Copying | AgentError = await copier.state() if copier is not None else _NO_COPIER
    except AgentError as error:
        copying = error
    return found, capabilities.copies(copying, config.copy.to)


def _introduced(control: socket.socket, workers: Workers) -> None:
    """Take the channel to a (new) launcher; end when the supervisor has gone."""
    try:
        message, descriptors = channel.receive(control)
    except BlockingIOError:
        return
    except OSError:
        message, descriptors = b"", []
    if message == INTRODUCTION and len(descriptors) == 1:
        workers.attach(socket.socket(fileno=descriptors[0]))
        return
    channel.close_all(descriptors)
    if not message:
        asyncio.get_running_loop().remove_reader(control)
        os.kill(os.getpid(), signal.SIGTERM)


def _copier(store: Store, copy: Copy, logger: Logger) -> Copier | None:
    """Make what copies; None when its library is not installed."""
    if copy.to.startswith(_DIRECTORY):
        return Copier(store, Folder(copy.to.removeprefix(_DIRECTORY)), logger)
    try:
        from freezeframe.agentd.store.bucket import Bucket  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        logger.warning("copying", error=_NO_COPIER.detail, hint=_NO_COPIER.hint)
        return None
    return Copier(store, Bucket(copy), logger)


async def _keep_warm(engine: Engine, logger: Logger) -> None:
    while True:
        try:
            await engine.warm()
        except Exception:
            logger.exception("learning command lines")
        await asyncio.sleep(_WARM_EVERY_S)


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""


def main(argv: Sequence[str]) -> None:
    """Serve, then leave at once: a store thread that a dead disk holds would keep the process."""
    once = _ONCE in argv
    rest = [argument for argument in argv if argument != _ONCE]
    # A private agent has nothing to do with the configured listener of this host's daemon.
    code = front.main(partial(compose, once=once), rest, listens=not once)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1:])
