"""One capture of many hosts: ways are opened first, then all captures begin at one instant.

A thread per host. Each opens its way (ssh, TLS, a socket), asks on which ports the host serves, says that it is there,
and waits for the start, which comes when every host is there or has failed, at the latest after ARM_S; who comes later
begins at once. Each host is told the ports of all: who of it is connected to one elsewhere is a client. A host that
fails, or is slow, holds up no other one: what bounds it is its own way's and call's time.

What comes is written to a folder as it comes, and lies there: of hundreds of hosts it is never in memory at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from freezeframe.client.connection import Agent
from freezeframe.client.errors import ClientError
from freezeframe.v1 import service_pb2

# Hosts that are not reached by then are not waited for by the others.
ARM_S = 5.0
# Hosts whose bytes come at a time: gRPC has those of each in memory, all 500 end their captures together.
AT_A_TIME = 32
# Each host's bytes share the way of those of all: so much longer may one take, per host.
WAY_S = 0.05
# Of each thread: hundreds of the default size are more than a client may have, and gRPC has one more for each call.
_STACK_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """When a capture began, by the clock of who asked; milliseconds since 1970."""

    # It began no earlier, and no later.
    earliest_ms: float
    latest_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one host."""

    # As it was asked for.
    host: str
    # File with the bytes of its snapshot; empty when none came.
    path: str = ""
    # Why none came.
    error: ClientError | None = None
    done: service_pb2.CaptureDone | None = None
    # None where nobody knows when it began.
    clock: Clock | None = None
    took_s: float = 0.0


Reach = Callable[[str], AbstractContextManager[Agent]]
Told = Callable[[Answer], None]


def capture(
    hosts: Sequence[str],
    reach: Reach,
    request: service_pb2.CaptureRequest,
    deadline_s: float,
    folder: str,
    on_answer: Told = lambda _: None,
) -> tuple[Answer, ...]:
    """Capture all of them, in their order. `on_answer` is called for each as it ends, one at a time."""
    start = _Start(len(hosts))
    answers: list[Answer | None] = [None] * len(hosts)
    lock = threading.Lock()

    def run(place: int) -> None:
        within_s = deadline_s + WAY_S * len(hosts)
        answer = _one(hosts[place], reach, request, within_s, os.path.join(folder, str(place)), start)
        with lock:
            answers[place] = answer
            on_answer(answer)

    # They end by themselves; an interrupt of this process does not wait for them.
    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(hosts))]
    before = threading.stack_size(_STACK_BYTES)
    try:
        for thread in threads:
            thread.start()
        start.wait(ARM_S)
        for thread in threads:
            thread.join()
    finally:
        threading.stack_size(before)
    return tuple(answer or Answer(host=host, error=_lost(host)) for host, answer in zip(hosts, answers, strict=True))


def _lost(host: str) -> ClientError:
    return ClientError(f"capturing {host}: this client failed; the lines above say how")


class _Turn:
    """Takes the turn of one host to send its bytes, which it does when all its collectors have ended.

    Until it is taken nothing more is read, and the agent waits with what it sends. One that is at work yet, or hangs,
    has no turn: it keeps no other one from sending.
    """

    def __init__(self, turns: threading.Semaphore) -> None:
        self._turns = turns
        self._running: set[str] = set()
        self._has = False

    def step(self, progress: service_pb2.Progress) -> None:
        """Take it, or give it back, as the step says."""
        if progress.HasField("outcome"):
            self._running.discard(progress.collector)
        else:
            self._running.add(progress.collector)
        if self._running:
            self.end()
        elif not self._has:
            self._turns.acquire()
            self._has = True

    def end(self) -> None:
        """Give it back, if it has it."""
        if self._has:
            self._turns.release()
            self._has = False


class _Start:
    """Everybody waits until all are there."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self.turns = threading.Semaphore(AT_A_TIME)
        # On which the hosts serve.
        self.ports: set[int] = set()
        self._all_here = threading.Condition()
        self._go = threading.Event()

    def here(self, ports: Iterable[int] = ()) -> None:
        """One more is there, or will never be."""
        with self._all_here:
            self.ports.update(ports)
            self._missing -= 1
            self._all_here.notify()

    def wait(self, limit_s: float) -> None:
        """Start everybody once all are there, or the time is over."""
        with self._all_here:
            self._all_here.wait_for(lambda: self._missing <= 0, limit_s)
        self._go.set()

    def gate(self) -> list[int]:
        """Wait for the start; gives the ports that are known by then."""
        self._go.wait()
        with self._all_here:
            return sorted(self.ports)


def _one(
    host: str,
    reach: Reach,
    request: service_pb2.CaptureRequest,
    deadline_s: float,
    path: str,
    start: _Start,
) -> Answer:
    began = time.monotonic()
    waits = True
    turn = _Turn(start.turns)
    try:
        with reach(host) as agent:
            ports = _serving_ports(agent)
            start.here(ports)
            waits = False
            own = service_pb2.CaptureRequest(toward=start.gate())
            own.MergeFrom(request)
            asked_ms = time.time() * 1000
            steps: list[float] = []

            def step(progress: service_pb2.Progress) -> None:
                if not steps:
                    steps.append(time.time() * 1000)
                turn.step(progress)

            with open(path, "xb") as target:
                done = agent.capture(own, deadline_s).receive_into(target, step)
    except ClientError as error:
        return Answer(host=host, error=error, took_s=time.monotonic() - began)
    except OSError as error:
        failed = ClientError(f"keeping what came of {host}: {error.strerror or error}")
        return Answer(host=host, error=failed, took_s=time.monotonic() - began)
    finally:
        turn.end()
        if waits:
            start.here()
    # A capture of somebody else's began before it was asked for.
    clock = None if done.shared or not steps else Clock(earliest_ms=asked_ms, latest_ms=steps[0])
    return Answer(host=host, path=path, done=done, clock=clock, took_s=time.monotonic() - began)


def _serving_ports(agent: Agent) -> Iterable[int]:
    """None of an agent that does not say: the capture itself tells what is wrong with it."""
    try:
        return agent.capabilities().serving_ports
    except ClientError:
        return ()
