"""Schedules and triggers at work: in the front, on its event loop, a look at the clock a second.

What comes due is captured through `Captures.uncalled`, which gives way to callers. A trigger's capture is taken at once
and again 5 s and 30 s later. Files are read and written in one thread of their own, under a time limit.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol, TypeVar

from freezeframe.agentd import bounded
from freezeframe.agentd.audit import Audit, Call
from freezeframe.agentd.capture import CaptureSpec, Urgency
from freezeframe.agentd.captures import Captured
from freezeframe.agentd.errors import (
    AgentError,
    BadRequestError,
    SnapshotPinnedError,
    StoreFailedError,
    UnknownScheduleError,
    UnknownSnapshotError,
)
from freezeframe.agentd.host import Clock, rfc3339
from freezeframe.agentd.logs import Logger
from freezeframe.agentd.schedules import conditions, times, triggers
from freezeframe.agentd.schedules.checks import refusal, trigger_of
from freezeframe.agentd.schedules.files import Files
from freezeframe.agentd.schedules.schedule import Schedule
from freezeframe.agentd.store import Store
from freezeframe.judge.model import Triggered

MOST = 100
_TICK_S = 1.0
_DISK_S = 10.0
_BLIND_S = 3.0
_DIGITS = 3

_NOTHING: Mapping[str, str] = MappingProxyType({})

T = TypeVar("T")


class Captures(Protocol):
    """What captures (`agentd.captures.Captures`)."""

    async def uncalled(self, spec: CaptureSpec, urgency: Urgency) -> tuple[Captured, str]:
        """Capture; gives it, and why it was not kept."""


@dataclass(slots=True, kw_only=True)
class Entry:
    """One schedule, and where it stands."""

    schedule: Schedule
    # Whether it stands in the configuration file.
    configured: bool
    # When it is due, seconds since the epoch; None for a trigger.
    due: float | None = None
    # When it captured last, seconds since the epoch.
    ran_at: float | None = None
    # What came of that: a snapshot id, or what went wrong.
    last: str = ""
    # Of a trigger.
    condition: conditions.Condition | None = None
    trigger: triggers.Trigger | None = None
    state: triggers.State = field(default_factory=triggers.State)
    # Its snapshots that are kept, oldest first.
    kept: deque[str] = field(default_factory=deque)
    # While it captures.
    busy: asyncio.Task[None] | None = None


# Called with each snapshot that a schedule or a trigger brought: schedule, spec, what was captured.
OnCaptured = Callable[[Schedule, CaptureSpec, Captured], None]


class Schedules:
    """All schedules of this agent."""

    def __init__(
        self,
        *,
        captures: Captures,
        store: Store | None,
        files: Files,
        configured: Sequence[Schedule],
        collectors: Sequence[str],
        logger: Logger,
        audit: Audit,
        on_captured: OnCaptured = lambda _schedule, _spec, _captured: None,
        clock: Clock = Clock(),  # noqa: B008 - frozen
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`configured` are those of the configuration file; `uniform` draws the jitter."""
        self._captures = captures
        self._store = store
        self._files = files
        self._collectors = collectors
        self._log = logger
        self._audit = audit
        self._on_captured = on_captured
        self._clock = clock
        self._uniform = uniform
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="schedules")
        self._loaded = asyncio.Event()
        # When values came last (monotonic), and when the clock was looked at last (wall).
        self._valued_at = clock.monotonic()
        self._ticked_at = clock.wall()
        self._entries: dict[str, Entry] = {}
        # What is wrong with the files, and with schedules of the configuration.
        self.damage: tuple[str, ...] = ()
        for schedule in configured:
            unknown = [name for name in (*schedule.only, *schedule.skip) if name not in collectors]
            if unknown:
                self.damage += (f"schedule {schedule.name}: there is no collector {unknown[0]!r}",)
            else:
                self._entries[schedule.name] = self._entry(schedule, configured=True, ran_at=None)

    async def run(self) -> None:
        """Capture what comes due until cancelled."""
        try:
            await self._load()
            while True:
                self.tick()
                await asyncio.sleep(_TICK_S)
        finally:
            for entry in self._entries.values():
                if entry.busy is not None:
                    entry.busy.cancel()
            self._thread.shutdown(wait=False)

    def has_triggers(self) -> bool:
        """Whether there is a condition to evaluate."""
        return any(entry.trigger is not None for entry in self._entries.values())

    def listed(self) -> tuple[Entry, ...]:
        """All of them, by name."""
        return tuple(self._entries[name] for name in sorted(self._entries))

    async def put(self, schedule: Schedule) -> None:
        """Add or replace one, and keep it. Raises BadRequestError, StoreFailedError."""
        detail, hint = refusal(schedule)
        if detail:
            raise BadRequestError(detail, hint)
        await self._until_loaded()
        old = self._entries.get(schedule.name)
        if old is not None and old.configured:
            raise BadRequestError(
                f"the schedule {schedule.name} stands in the agent's configuration file",
                "change it there, or name another",
            )
        if old is None and len(self._entries) >= MOST:
            raise BadRequestError(f"there are {MOST} schedules already", "freezeframe schedule rm NAME")
        await self._do(f"keeping the schedule {schedule.name}", lambda: self._files.save(schedule))
        entry = self._entry(schedule, configured=False, ran_at=None)
        if old is not None:
            entry.kept = old.kept
            if old.busy is not None:
                old.busy.cancel()
        self._entries[schedule.name] = entry

    async def delete(self, name: str) -> None:
        """Forget one; what it captured stays. Raises UnknownScheduleError, BadRequestError, StoreFailedError."""
        await self._until_loaded()
        entry = self._entries.get(name)
        if entry is None:
            raise UnknownScheduleError(f"there is no schedule {name[:80]!r}", "freezeframe schedule list")
        if entry.configured:
            raise BadRequestError(f"the schedule {name} stands in the agent's configuration file", "take it out there")
        await self._do(f"removing the schedule {name}", lambda: self._files.remove(name))
        del self._entries[name]
        if entry.busy is not None:
            entry.busy.cancel()

    def tick(self) -> None:
        """Begin what has come due."""
        now = self._clock.wall()
        set_back = now < self._ticked_at - times.GRACE_S
        self._ticked_at = now
        if self._clock.monotonic() - self._valued_at > _BLIND_S:
            # What a condition held for before nobody looked does not count.
            self.on_values({}, self._clock.monotonic())
        for entry in self._entries.values():
            if entry.due is None:
                continue
            if set_back:
                entry.due = self._next(entry.schedule, now, None)
            if entry.due > now:
                continue
            late = now - entry.due > times.GRACE_S + entry.schedule.jitter_s and entry.schedule.missed == "skip"
            if entry.busy is None and not late:
                entry.busy = asyncio.ensure_future(self._timed(entry))
            entry.due = self._next(entry.schedule, now, entry.due)

    def on_values(self, values: Mapping[str, float], now: float, told: Mapping[str, str] = _NOTHING) -> None:
        """Evaluate every trigger on the values of one second; `now` is monotonic, `told` goes into the snapshot."""
        self._valued_at = now
        firing = []
        for entry in self._entries.values():
            if entry.trigger is None or entry.condition is None:
                continue
            entry.state, fires = triggers.step(entry.trigger, entry.state, values, now)
            if fires and entry.busy is None:
                firing.append((entry, entry.condition, entry.trigger))
        seen = {name: f"{round(value, _DIGITS):g}" for name, value in values.items()} | dict(told)
        # The first to come is captured first, whoever comes then: the most urgent has to be it.
        for entry, condition, trigger in sorted(firing, key=lambda each: triggers.urgency(each[2], 1)):
            self._log.info("trigger", schedule=entry.schedule.name, condition=condition.text)
            entry.busy = asyncio.ensure_future(self._looks(entry, condition, trigger, seen))

    def _entry(self, schedule: Schedule, *, configured: bool, ran_at: float | None) -> Entry:
        entry = Entry(schedule=schedule, configured=configured, ran_at=ran_at)
        if schedule.when:
            entry.condition, entry.trigger = conditions.parse(schedule.when), trigger_of(schedule)
        else:
            entry.due = times.first_due(schedule, self._clock.wall(), ran_at)
            entry.due += self._uniform(0.0, schedule.jitter_s)
        return entry

    def _next(self, schedule: Schedule, now: float, ran_at: float | None) -> float:
        return times.following(schedule, now, ran_at) + self._uniform(0.0, schedule.jitter_s)

    async def _timed(self, entry: Entry) -> None:
        spec = _spec(entry.schedule, f"schedule {entry.schedule.name}", None)
        try:
            await self._capture(entry, spec, Urgency.PATIENT)
        finally:
            entry.busy = None

    async def _looks(
        self, entry: Entry, condition: conditions.Condition, trigger: triggers.Trigger, seen: Mapping[str, str]
    ) -> None:
        fired, fired_at = self._clock.monotonic(), rfc3339(self._clock.wall())
        try:
            for number, after_s in enumerate(triggers.LOOKS_S, 1):
                await asyncio.sleep(max(0.0, fired + after_s - self._clock.monotonic()))
                triggered = Triggered(
                    condition=condition.text,
                    expression=condition.expression,
                    look=number,
                    looks=len(triggers.LOOKS_S),
                    fired_at=fired_at,
                    values=tuple(sorted(seen.items())),
                )
                spec = _spec(entry.schedule, f"trigger {condition.text}", triggered)
                await self._capture(entry, spec, triggers.urgency(trigger, number))
        finally:
            entry.busy = None

    async def _capture(self, entry: Entry, spec: CaptureSpec, urgency: Urgency) -> None:
        name = entry.schedule.name
        begin = self._clock.monotonic()
        outcome, sent_bytes = "CANCELLED", 0
        try:
            captured, why_not = await self._captures.uncalled(spec, urgency)
        except AgentError as error:
            outcome, entry.last = "FAILED", error.detail
            return
        except Exception as error:  # noqa: BLE001 - one capture that fails must not end the schedule
            outcome, entry.last = "INTERNAL", f"{error!r}"[:200]
            self._log.exception("scheduled capture", schedule=name)
            return
        else:
            outcome, sent_bytes = "OK", len(captured.data)
            entry.last = captured.snapshot_id if not why_not else f"not kept: {why_not}"
        finally:
            entry.ran_at = self._clock.wall()
            self._audit.record(
                Call(
                    who=f"schedule {name}",
                    rpc="Capture",
                    targets=(spec.trigger,),
                    outcome=outcome,
                    detail="" if outcome == "CANCELLED" else entry.last,
                    sent_bytes=sent_bytes,
                    duration_ms=(self._clock.monotonic() - begin) * 1000.0,
                )
            )
        if not why_not:
            entry.kept.append(captured.snapshot_id)
            self._on_captured(entry.schedule, spec, captured)
        try:
            await self._trim(entry)
            await self._do("noting a run", lambda: self._files.note_run(name, entry.ran_at or 0.0))
        except AgentError as error:
            self._log.warning("after a scheduled capture", schedule=name, error=error.detail)

    async def _trim(self, entry: Entry) -> None:
        """Remove the oldest of its snapshots beyond `keep`; those that somebody pinned stay, and do not count."""
        while self._store is not None and entry.schedule.keep and len(entry.kept) > entry.schedule.keep:
            oldest = entry.kept.popleft()
            try:
                await self._store.delete(oldest)
            except (SnapshotPinnedError, UnknownSnapshotError):
                continue

    async def _load(self) -> None:
        """Read what is kept; a disk that does not answer costs the added schedules, not those of the configuration."""
        try:
            loaded = await self._do("reading the schedules", self._files.load)
            kept = await self._store.kept() if self._store is not None else []
        except AgentError as error:
            self.damage += (error.detail,)
            self._log.warning("reading the schedules", error=error.detail, hint=error.hint)
            self._loaded.set()
            return
        for sentence in loaded.damage:
            self._log.warning("reading the schedules", error=sentence)
        self.damage += loaded.damage
        ran_at = dict(loaded.ran_at)
        for schedule in (*(entry.schedule for entry in self._entries.values()), *loaded.schedules):
            known = self._entries.get(schedule.name)
            if known is None or known.schedule is schedule:
                self._entries[schedule.name] = self._entry(
                    schedule, configured=known is not None, ran_at=ran_at.get(schedule.name)
                )
        for each in reversed(kept):
            meta = each.manifest.hosts[0].meta if each.manifest is not None and each.manifest.hosts else None
            if meta is not None and meta.schedule in self._entries and not each.pinned:
                self._entries[meta.schedule].kept.append(each.snapshot_id)
        self._loaded.set()

    async def _until_loaded(self) -> None:
        try:
            await bounded.wait(self._loaded.wait(), _DISK_S)
        except asyncio.TimeoutError:
            raise StoreFailedError("the schedules are not read yet", "look for a dead disk: dmesg, mount") from None

    async def _do(self, doing: str, work: Callable[[], T]) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        # The thread is not waited for when this is cancelled.
        if not (await asyncio.wait({future}, timeout=_DISK_S))[0]:
            future.cancel()
            raise StoreFailedError(
                f"{doing}: the disk does not answer within {_DISK_S:g} s", "look for a dead disk or mount: dmesg, mount"
            )
        try:
            return future.result()
        except OSError as error:
            raise StoreFailedError(f"{doing}: {error.strerror}", "see the disk of the state directory") from error


def _spec(schedule: Schedule, trigger: str, triggered: Triggered | None) -> CaptureSpec:
    return CaptureSpec(
        window_ms=schedule.window_s * 1000.0,
        deadline_ms=schedule.deadline_s * 1000.0,
        only=schedule.only,
        skip=schedule.skip,
        note=schedule.note,
        trigger=trigger,
        schedule=schedule.name,
        triggered=triggered,
    )
