"""Follows the serving path second by second through a worker that stays, for triggers and metrics. Blocks nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from freezeframe.agentd.collectors.watch_path import WATCH_PATH
from freezeframe.agentd.engine import Runs, as_target
from freezeframe.agentd.host import Clock
from freezeframe.agentd.jobs import Job
from freezeframe.agentd.recorder.history import History, Key
from freezeframe.agentd.schedules import readings
from freezeframe.judge.model import Edge, Outcome, Process, RecorderState, Series, Snapshot

# How long one worker goes on: then the next one finds the processes that there are.
_JOB_MS = 30_000.0
_PAUSE_S = 1.0
# New processes are learned of at most so often.
_LEARN_S = 5.0
# What was handed over longer ago tells nothing of now.
FRESH_S = 3.0


class Knows(Protocol):
    """What knows the processes of the host (`agentd.engine.Engine`)."""

    def known(self) -> Sequence[Process]:
        """Processes with the roles that their names give them."""

    async def warm(self) -> None:
        """Learn those that are new."""


# Called with the values of a second, the time, and what else there is to tell of it.
OnValues = Callable[[Mapping[str, float], float, Mapping[str, str]], None]


class Feed:
    """Follows for as long as `run` runs and somebody wants it."""

    def __init__(
        self,
        *,
        workers: Runs,
        processes: Knows,
        clock: Clock = Clock(),  # noqa: B008 - frozen
    ) -> None:
        """Ask through `workers`."""
        self._workers = workers
        self._processes = processes
        self._clock = clock
        self._history = History()
        self._living: dict[tuple[int, int], Process] = {}
        # Of the path, seen alive, and not known any more when the next worker began.
        self._vanished: tuple[Process, ...] = ()
        self._learned_at = 0.0
        # Pids at the ends of edges that were looked up in vain: they are not asked for again.
        self._strangers: frozenset[int] = frozenset()
        self._next_job = 0
        self._at = float("-inf")
        self._edges: tuple[Edge, ...] = ()
        self._recorder: RecorderState | None = None
        self._values: dict[str, float] = {}

    async def run(self, wanted: Callable[[], bool], on_values: OnValues) -> None:
        """Follow until cancelled; `on_values` gets the values of each second, and the time."""
        while True:
            if not wanted():
                self._living = {}
                await asyncio.sleep(_PAUSE_S)
                continue
            path = readings.of_path(self._processes.known())
            present = {readings.key_of(process) for process in path}
            self._vanished += tuple(each for key, each in self._living.items() if key not in present)
            self._living = {key: each for key, each in self._living.items() if key in present}
            self._next_job += 1
            job = Job(
                job_id=self._next_job,
                collector=WATCH_PATH.name,
                targets=tuple(map(as_target, path)),
                deadline_ms=_JOB_MS,
            )
            unknown = asyncio.Event()
            running = asyncio.ensure_future(
                self._workers.run(
                    WATCH_PATH,
                    job,
                    on_part=lambda part: self.take(part, on_values, unknown),  # noqa: B023 - used while it runs
                    on_doing=lambda _what, _done: None,
                )
            )
            learning = asyncio.ensure_future(self._learn(unknown))
            try:
                # Once new processes are known, a worker that knows them takes over.
                await asyncio.wait([running, learning], return_when=asyncio.FIRST_COMPLETED)
                ended = running.done() and running.result().status is Outcome.Status.OK
            finally:
                for each in (running, learning):
                    each.cancel()
                await asyncio.gather(running, learning, return_exceptions=True)
            if not ended and not learning.done():
                await asyncio.sleep(_PAUSE_S)

    async def _learn(self, unknown: asyncio.Event) -> None:
        """Wait for a process that is not known, and learn what there is of the path; ends when that has changed."""
        while True:
            before = {readings.key_of(process) for process in readings.of_path(self._processes.known())}
            await unknown.wait()
            await asyncio.sleep(max(0.0, self._learned_at + _LEARN_S - self._clock.monotonic()))
            self._learned_at = self._clock.monotonic()
            await self._processes.warm()
            unknown.clear()
            if {readings.key_of(process) for process in readings.of_path(self._processes.known())} != before:
                return

    def take(self, part: Snapshot, on_values: OnValues, unknown: asyncio.Event) -> None:
        """Take the look of one second."""
        now = self._clock.monotonic()
        known = self._processes.known()
        values = readings.values(part, known, self._living)
        ended = (*self._vanished, *readings.ended(part, self._living))
        if self._vanished:
            values["exits"] = float(len(ended))
            self._vanished = ()
        self._living = readings.alive(part)
        self._at, self._edges, self._recorder, self._values = now, part.edges, part.recorder, values
        self._history.add({Key("path", name): value for name, value in values.items()})
        ends = {pid for edge in part.edges for pid in (edge.client_pid, edge.server_pid) if pid is not None}
        strangers = frozenset(ends - {process.pid for process in known})
        if strangers - self._strangers:
            unknown.set()
        self._strangers = strangers
        on_values(values, now, {"ended": readings.named(ended)} if ended else {})

    def fresh(self) -> bool:
        """Whether the last look is of the last seconds."""
        return self._clock.monotonic() - self._at <= FRESH_S

    def values(self) -> Mapping[str, float]:
        """The values of the last look; empty where there is none of the last seconds."""
        return self._values if self.fresh() else {}

    def edges(self) -> tuple[Edge, ...]:
        """The edges of the host at the last look."""
        return self._edges if self.fresh() else ()

    def recorder(self) -> RecorderState | None:
        """What the recorder said of itself at the last look."""
        return self._recorder if self.fresh() else None

    def tell(self) -> tuple[Series, ...]:
        """The values of the last minutes, as series of a snapshot."""
        return tuple(
            Series(
                kind=told.key.kind,
                subject=told.key.subject,
                values=tuple(round(value, 3) for value in told.values),
                last_nonzero_age_ms=None if told.last_nonzero_s is None else told.last_nonzero_s * 1000.0,
            )
            for told in self._history.tell()
        )
