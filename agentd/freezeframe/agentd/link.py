"""The front's end of one launcher: asks for workers, hears of them. Lives as long as that launcher."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

from freezeframe.agentd.channel import Channel, Message, encode
from freezeframe.agentd.collectors.contract import Collector
from freezeframe.agentd.errors import LauncherDownError


class Worker:
    """One worker that was asked for; `wake` is set whenever something here changes."""

    def __init__(self, number: int, collector: Collector, wake: asyncio.Event) -> None:
        """Nothing is known of it yet."""
        self.number = number
        self.collector = collector
        self.wake = wake
        # 0 until the launcher has forked it.
        self.pid = 0
        # Why it was not started; empty when it was, or may be yet.
        self.refused = ""
        # Of waitpid, once it has ended.
        self.status: int | None = None
        # Whether it has come to its own end.
        self.ended = False
        # Whether it and its helpers have ended.
        self.gone = False
        # Killed over these targets; None = not killed.
        self.killed_over: frozenset[int] | None = None


class Link:
    """One work socket."""

    def __init__(
        self,
        channel: Channel,
        *,
        on_started: Callable[[Link, Worker], None],
        on_other: Callable[[Message], None],
        on_lost: Callable[[], None],
    ) -> None:
        """Follow the channel; `on_other` hears of what has ended, and of workers of a former front."""
        self._channel = channel
        self._on_started = on_started
        self._on_other = on_other
        self._on_lost = on_lost
        self._workers: dict[int, Worker] = {}
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(channel, self._receive)

    @property
    def closed(self) -> bool:
        """Whether the launcher is gone."""
        return self._channel.closed

    def start(self, collector: Collector, *, slot: int, pipe: int, wake: asyncio.Event) -> Worker:
        """Ask for a worker. Raises LauncherDownError."""
        worker = Worker(next(self._numbers), collector, wake)
        self._workers[worker.number] = worker
        message = encode("start", job=worker.number, collector=collector.name)
        if not self._channel.send(message, (slot, pipe)):
            del self._workers[worker.number]
            if self._channel.closed:
                self.close()
            raise LauncherDownError("starting a worker: the launcher does not answer", "it is restarted by itself")
        return worker

    def kill(self, worker: Worker, targets: frozenset[int]) -> None:
        """Have a worker killed, whatever it does; `targets` is what it was stuck on, as far as that is known."""
        worker.killed_over = targets
        if worker.number in self._workers and not self._channel.closed:
            self._channel.send(encode("kill", job=worker.number, targets=",".join(map(str, sorted(targets)))))
            if self._channel.closed:
                self.close()
            elif self._channel.wants_write:
                self._loop.add_writer(self._channel, self._flush)

    def close(self) -> None:
        """Let go of the launcher; every worker's `wake` is set."""
        if self._channel.fileno() < 0:
            return
        self._loop.remove_reader(self._channel)
        self._loop.remove_writer(self._channel)
        self._channel.close()
        for worker in self._workers.values():
            worker.wake.set()
        self._workers.clear()
        self._on_lost()

    def _flush(self) -> None:
        self._channel.flush()
        if self._channel.closed:
            self.close()
        elif not self._channel.wants_write:
            self._loop.remove_writer(self._channel)

    def _receive(self) -> None:
        for message in self._channel.receive():
            worker = self._workers.get(message.number("job"))
            if worker is None:
                self._on_other(message)
            elif message.op == "started":
                worker.pid = message.number("pid")
                self._on_started(self, worker)
            elif message.op == "refused":
                worker.refused = message.text("why") or "no reason given"
                del self._workers[worker.number]
            elif message.op == "exited":
                worker.status = message.number("status")
            elif message.op == "gone":
                worker.gone = True
                del self._workers[worker.number]
                self._on_other(message)
            if worker is not None:
                worker.wake.set()
            message.close()
        if self._channel.closed:
            self.close()
