"""Captures in progress: who shares one, who waits, who is refused; then packed and kept.

Captures run one after the other. Equal specs that come together share one: whoever comes while it waits or within a
second of its start joins it. A bounded queue and a rate limit refuse the rest at once. A capture that nobody waits for
any more is cancelled. A finished one is handed over before the disk is asked, so a full or dead disk costs no capture.
What a schedule or a trigger asks for gives way: it waits until no caller does, and begins again when one comes. Where
several of these wait, the most urgent is next.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from freezeframe.agentd import bounded
from freezeframe.agentd.capture import CaptureSpec, OnStep, Step, Urgency
from freezeframe.agentd.config import CaptureLimits
from freezeframe.agentd.errors import AgentError, BusyError, LauncherDownError
from freezeframe.agentd.store import Store
from freezeframe.judge import file
from freezeframe.judge.model import Snapshot

# A capture that began longer ago shows an instant that is past.
_SHARE_WITHIN_S = 1.0
# The engine keeps its deadline itself; this ends one that does not, so that the next can run.
_ENGINE_GRACE_S = 10.0
# What the end of a call waits for the disk; keeping goes on after it.
_KEEP_WAIT_S = 3.0
# Urgency, and in what order they came.
_Place = tuple[int, int]


class CaptureEngine(Protocol):
    """What captures (`agentd.engine.Engine`)."""

    async def capture(self, spec: CaptureSpec, on_step: OnStep) -> Snapshot:
        """Capture once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A finished capture, packed."""

    snapshot_id: str
    # The .ffz file.
    data: bytes
    # SHA-256 of it.
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A capture that ended, however."""

    spec: CaptureSpec
    # "ok", "failed", or "cancelled" where its callers had gone, or one came for whom it gave way.
    outcome: str
    duration_s: float
    # What it brought; None where it was not ok.
    snapshot: Snapshot | None


class Captures:
    """The only way to a capture, for calls and for schedules."""

    def __init__(
        self,
        engine: CaptureEngine,
        store: Store | None,
        limits: CaptureLimits,
        *,
        writer: str,
        clock: Callable[[], float] = time.monotonic,
        on_ended: Callable[[Ended], None] = lambda _ended: None,
    ) -> None:
        """`store` None keeps nothing; `writer` names program and version in the files; `clock` gives seconds."""
        self._on_ended = on_ended
        self._engine = engine
        self._store = store
        self._limits = limits
        self._writer = writer
        self._clock = clock
        self._turn = asyncio.Lock()
        self._runs: list[_Run] = []
        self._tokens = float(limits.burst)
        self._refilled = clock()
        # Captures that nobody called for: one at a time, while no caller has one.
        self._line = _Line()
        self._stopping = False
        self._uncalled: asyncio.Task[Captured] | None = None

    def join(self, spec: CaptureSpec) -> Participation:
        """Take part in a capture: one that just began with the same spec, or a new one. Raises BusyError at once."""
        for run in self._runs:
            fresh = run.started is None or self._clock() - run.started <= _SHARE_WITHIN_S
            if run.spec == spec and fresh:
                return Participation(run, shared=True)
        # One runs, the others wait.
        if len(self._runs) > self._limits.queue:
            raise BusyError(
                f"{self._limits.queue} captures wait already", "try again in some seconds, or raise capture.queue"
            )
        self._take_token()
        run = _Run(spec)
        run.task = asyncio.get_running_loop().create_task(self._capture(run), name="capture")
        self._runs.append(run)
        self._line.close()
        if self._uncalled is not None:
            self._uncalled.cancel()
        run.task.add_done_callback(lambda _task: self._end(run))
        return Participation(run, shared=False)

    async def uncalled(self, spec: CaptureSpec, urgency: Urgency) -> tuple[Captured, str]:
        """Capture for a schedule or a trigger; gives it, and why it was not kept (empty when it was).

        It gives way to callers, however often they come. Raises what the engine raises, and LauncherDownError.
        """
        place = self._line.place(urgency)
        while True:
            await self._line.first(place)
            try:
                if self._stopping:
                    raise LauncherDownError("the agent is stopping", "try again")
                run = _Run(spec)
                task = self._uncalled = asyncio.get_running_loop().create_task(self._capture(run), name="uncalled")
                try:
                    await asyncio.wait([task])
                finally:
                    self._uncalled = None
                    task.cancel()
                if not task.cancelled():
                    captured = task.result()
                    return captured, await _not_kept_because(run)
            finally:
                self._line.leave()

    async def stop(self) -> None:
        """Cancel what runs; whoever waits gets LauncherDownError."""
        self._stopping = True
        tasks = [run.task for run in self._runs] + ([self._uncalled] if self._uncalled is not None else [])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _capture(self, run: _Run) -> Captured:
        async with self._turn:
            run.started = self._clock()
            outcome, snapshot = "failed", None
            try:
                snapshot = await bounded.wait(
                    self._engine.capture(run.spec, run.on_step), run.spec.deadline_ms / 1000.0 + _ENGINE_GRACE_S
                )
                outcome = "ok"
            except asyncio.CancelledError:
                outcome = "cancelled"
                raise
            except asyncio.TimeoutError as error:
                raise LauncherDownError(
                    f"the capture had not ended {_ENGINE_GRACE_S:g} s after its deadline", "try again"
                ) from error
            finally:
                taken_s = self._clock() - run.started
                self._on_ended(Ended(spec=run.spec, outcome=outcome, duration_s=taken_s, snapshot=snapshot))
        # Packing is mostly zstd and SHA-256, which let other threads run; the event loop must.
        captured = await asyncio.to_thread(_pack, snapshot, self._writer)
        run.kept = asyncio.get_running_loop().create_task(self._keep(captured), name="keep")
        return captured

    async def _keep(self, captured: Captured) -> str:
        """Keep it; gives why it was not, empty when it was."""
        if self._store is None:
            return "this agent keeps nothing"
        try:
            await self._store.put(captured.snapshot_id, captured.data)
        except AgentError as error:
            return f"{error.detail}; {error.hint}" if error.hint else error.detail
        return ""

    def _take_token(self) -> None:
        now = self._clock()
        self._tokens = min(
            float(self._limits.burst), self._tokens + (now - self._refilled) * self._limits.per_minute / 60.0
        )
        self._refilled = now
        if self._tokens < 1.0:
            raise BusyError(
                f"more than {self._limits.per_minute:g} captures a minute were asked for",
                "try again in some seconds, or raise capture.per_minute",
            )
        self._tokens -= 1.0

    def _end(self, run: _Run) -> None:
        self._runs.remove(run)
        if not self._runs:
            self._line.open()
        if not run.task.cancelled():
            run.task.exception()  # Seen, also when nobody waits any more.
        run.wake()


class _Line:
    """Who comes next; nobody does while it is closed. Like a lock, for tasks of one event loop."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._is_open = True
        self._taken = False
        self._waiting: dict[_Place, asyncio.Future[None]] = {}

    def place(self, urgency: Urgency) -> _Place:
        """Where somebody stands who comes now; kept by who has to wait again."""
        return urgency, next(self._numbers)

    async def first(self, place: _Place) -> None:
        """Wait until it is their turn, which ends with `leave`."""
        turn = self._waiting[place] = asyncio.get_running_loop().create_future()
        self._next()
        try:
            await turn
        except asyncio.CancelledError:
            if self._waiting.pop(place, None) is None:
                # It was their turn already.
                self.leave()
            raise

    def leave(self) -> None:
        self._taken = False
        self._next()

    def open(self) -> None:
        self._is_open = True
        self._next()

    def close(self) -> None:
        self._is_open = False

    def _next(self) -> None:
        if self._is_open and not self._taken and self._waiting:
            self._taken = True
            self._waiting.pop(min(self._waiting)).set_result(None)


class _Run:
    """One capture, for one or many participants."""

    def __init__(self, spec: CaptureSpec) -> None:
        self.spec = spec
        self.started: float | None = None
        self.steps: dict[str, Step] = {}
        self.participants: set[Participation] = set()
        self.task: asyncio.Task[Captured]
        self.kept: asyncio.Task[str] | None = None

    def on_step(self, step: Step) -> None:
        self.steps[step.collector] = step
        for participant in self.participants:
            participant.pending[step.collector] = step
        self.wake()

    def wake(self) -> None:
        for participant in self.participants:
            participant.news.set()


class Participation:
    """One caller's part in a capture; leave it as a context manager."""

    def __init__(self, run: _Run, *, shared: bool) -> None:
        """Join `run`."""
        self._run = run
        # True when the capture was begun for another caller.
        self.shared = shared
        # The latest step of each collector that was not told yet: a slow reader misses steps, never the last.
        self.pending = dict(run.steps)
        self.news = asyncio.Event()
        run.participants.add(self)

    async def __aenter__(self) -> Participation:  # noqa: PYI034 - Self is newer than Python 3.10
        """Take part."""
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """Leave; the last one to leave a capture that still runs cancels it."""
        self._run.participants.discard(self)
        if not self._run.participants and not self._run.task.done():
            self._run.task.cancel()

    async def steps(self) -> AsyncGenerator[Step, None]:
        """Tell the steps until the capture has ended."""
        while True:
            while self.pending:
                yield self.pending.pop(next(iter(self.pending)))
            if self._run.task.done():
                return
            await self.news.wait()
            self.news.clear()

    async def captured(self) -> Captured:
        """Wait for the capture. Raises what the engine raised, and LauncherDownError when the agent stops."""
        await asyncio.wait([self._run.task])
        if self._run.task.cancelled():
            raise LauncherDownError("the agent is stopping", "try again")
        return self._run.task.result()

    async def not_kept_because(self) -> str:
        """Say, after `captured`, why it was not kept; empty when it was."""
        return await _not_kept_because(self._run)


async def _not_kept_because(run: _Run) -> str:
    if run.kept is None:
        return "it was not captured"
    done, _ = await asyncio.wait([run.kept], timeout=_KEEP_WAIT_S)
    return run.kept.result() if done else f"the disk has not taken it within {_KEEP_WAIT_S:g} s"


def _pack(snapshot: Snapshot, writer: str) -> Captured:
    data = file.write([snapshot], writer)
    snapshot_id = snapshot.meta.snapshot_id if snapshot.meta is not None else ""
    return Captured(snapshot_id=snapshot_id, data=data, digest=hashlib.sha256(data).digest())
