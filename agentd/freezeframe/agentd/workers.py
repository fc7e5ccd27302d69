"""The front's side of the launcher: runs jobs in workers under deadlines. asyncio, no blocking call.

Past its deadline a worker is killed and abandoned, never waited for: a read of a stuck process outlives SIGKILL. What
it had sent is kept. Where a collector looks at memory, a target that lets its worker wait longer than the collector's
patience is left out, and the pids not reached go to a fresh worker. An abandoned worker that has not ended keeps its
target in quarantine for that collector; 16 of them in the memory tier close that tier.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from freezeframe.agentd import channel
from freezeframe.agentd.collectors.contract import Collector, Tier
from freezeframe.agentd.errors import LauncherDownError
from freezeframe.agentd.frames import FrameError, Kind, Unpacker
from freezeframe.agentd.jobs import Job
from freezeframe.judge import wire
from freezeframe.judge.model import Outcome, Process, Snapshot

MAX_ABANDONED = 16
_READ_BYTES = 256 * 1024
# A restarted launcher is back well within this.
_LAUNCHER_WAIT_S = 3.0

_T = TypeVar("_T")

OnPart = Callable[[Snapshot], None]
OnDoing = Callable[[str, int], None]


@dataclass(slots=True)
class _Attempt:
    """One worker at work on (the rest of) a job."""

    events: asyncio.Queue[tuple[Kind, bytes] | None] = field(default_factory=asyncio.Queue)
    started: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    pidfd: int | None = None


@dataclass(slots=True)
class _Told:
    """What the workers of one run have told."""

    doing: str = ""
    parts: int = 0
    done: set[int] = field(default_factory=set)
    missed: dict[int, str] = field(default_factory=dict)
    partial: list[tuple[str, str]] = field(default_factory=list)
    end: tuple[Outcome.Status, str, str] | None = None


@dataclass(frozen=True, slots=True)
class _Abandoned:
    collector: str
    # The target it was stuck on; 0 when it was on none in particular.
    pid: int
    tier: Tier
    pidfd: int


class Workers:
    """Runs jobs; one per front."""

    def __init__(self) -> None:
        """No launcher is known until `attach`."""
        self._work: socket.socket | None = None
        self._attached = asyncio.Event()
        self._attempts: dict[int, _Attempt] = {}
        self._abandoned: list[_Abandoned] = []
        self._next_id = 0

    def attach(self, work: socket.socket) -> None:
        """Take a channel to a (new) launcher; attempts on the old one have failed."""
        self.detach()
        work.setblocking(False)
        self._work = work
        asyncio.get_running_loop().add_reader(work, self._answered, work)
        self._attached.set()

    def detach(self) -> None:
        """Let go of the launcher."""
        work, self._work = self._work, None
        self._attached.clear()
        if work is not None:
            asyncio.get_running_loop().remove_reader(work)
            work.close()
        for attempt in self._attempts.values():
            if not attempt.started.done():
                attempt.started.set_exception(LauncherDownError("starting a worker: the launcher has gone"))
                attempt.started.exception()  # seen, even where nobody waits any more

    def abandoned(self) -> int:
        """Count the killed workers that have not ended."""
        self._forget_ended()
        return len(self._abandoned)

    async def run(self, collector: Collector, job: Job, *, on_part: OnPart, on_doing: OnDoing) -> Outcome:
        """Run one job; ends by its deadline. Raises nothing but CancelledError, which kills the workers."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        deadline = begin + job.deadline_ms / 1000.0
        told = _Told()
        quarantined = self._leave_out_quarantined(collector, job, told)
        outcome: tuple[Outcome.Status, str, str]
        if quarantined:
            outcome = (Outcome.Status.SKIPPED, quarantined, "")
        else:
            outcome = await self._run_all(collector, job, told, deadline, on_part, on_doing)
        return Outcome(
            collector=collector.name,
            status=outcome[0],
            detail=outcome[1],
            hint=outcome[2],
            duration_ms=(loop.time() - begin) * 1000.0,
            items=len(told.done) or told.parts,
            pids_missed=tuple(told.missed),
        )

    def _leave_out_quarantined(self, collector: Collector, job: Job, told: _Told) -> str:
        """Mark the targets in quarantine as missed; give the reason when nothing may run at all."""
        self._forget_ended()
        if collector.tier is Tier.LOCK_FREE:
            return ""
        memory = sum(1 for each in self._abandoned if each.tier is Tier.MEMORY)
        if collector.tier is Tier.MEMORY and memory >= MAX_ABANDONED:
            return f"quarantined: {memory} killed workers have not ended yet, stuck in reads of sick processes"
        stuck = {each.pid for each in self._abandoned if each.collector == collector.name}
        if 0 in stuck:
            return "quarantined: an earlier worker of this collector was killed and has not ended yet"
        for target in job.targets:
            if target.pid in stuck:
                told.missed[target.pid] = "quarantined: an earlier read of it has not ended yet"
        if job.targets and len(told.missed) == len(job.targets):
            return "quarantined: earlier reads of every target have not ended yet"
        return ""

    def _forget_ended(self) -> None:
        poll = select.poll()
        for each in self._abandoned:
            poll.register(each.pidfd, select.POLLIN)
        ended = {descriptor for descriptor, _ in poll.poll(0)}
        for each in [each for each in self._abandoned if each.pidfd in ended]:
            self._abandoned.remove(each)
            os.close(each.pidfd)

    async def _run_all(
        self, collector: Collector, job: Job, told: _Told, deadline: float, on_part: OnPart, on_doing: OnDoing
    ) -> tuple[Outcome.Status, str, str]:
        loop = asyncio.get_running_loop()
        while True:
            left = tuple(each for each in job.targets if each.pid not in told.done and each.pid not in told.missed)
            if job.targets and not left:
                break
            rest = replace(job, targets=left, deadline_ms=max(1.0, (deadline - loop.time()) * 1000.0))
            try:
                stuck = await self._attempt(collector, rest, told, deadline, on_part, on_doing)
            except LauncherDownError as error:
                return Outcome.Status.FAILED, str(error), error.hint
            except FrameError as error:
                return Outcome.Status.FAILED, f"reading what the worker brought: {error}", "please report this"
            if stuck is None:
                break
            told.missed[stuck] = f"no answer within {collector.patience_ms:.0f} ms: {told.doing}"
            on_part(Snapshot(processes=(Process(pid=stuck, memory_blocked=True),)))
        return _ending(told, job, timed_out=loop.time() >= deadline)

    async def _attempt(
        self, collector: Collector, job: Job, told: _Told, deadline: float, on_part: OnPart, on_doing: OnDoing
    ) -> int | None:
        """Run one worker to its end, its deadline or a stuck target, whose pid is returned."""
        loop = asyncio.get_running_loop()
        self._next_id += 1
        number = self._next_id
        attempt = _Attempt()
        self._attempts[number] = attempt
        reader = await self._start(number, attempt, job, deadline)
        ended = False
        stuck: int | None = None
        try:
            while True:
                until, patient = deadline, collector.patience_ms is None or not job.targets
                if not patient and collector.patience_ms is not None:
                    until = min(deadline, loop.time() + collector.patience_ms / 1000.0)
                waiting = await _wait(attempt.events.get(), until - loop.time())
                if not waiting.done():
                    if until < deadline:
                        stuck = next((t.pid for t in job.targets if t.pid not in told.done | told.missed.keys()), None)
                    return stuck
                event = waiting.result()
                if event is None:
                    ended = True
                    return None
                self._take(told, event, on_part, on_doing)
                if told.end is not None:
                    ended = True
                    return None
        finally:
            self._attempts.pop(number, None)
            loop.remove_reader(reader)
            os.close(reader)
            if not ended:
                self._give_up(number, attempt, collector, stuck or 0)
            elif attempt.pidfd is not None:
                os.close(attempt.pidfd)

    async def _start(self, number: int, attempt: _Attempt, job: Job, deadline: float) -> int:
        """Ask the launcher for a worker; returns the read end of its pipe, already read from."""
        loop = asyncio.get_running_loop()
        await _wait(self._attached.wait(), min(_LAUNCHER_WAIT_S, deadline - loop.time()))
        if self._work is None:
            raise LauncherDownError("starting a worker: the launcher is not there", "it is restarted; try again")
        reader, writer = os.pipe2(os.O_CLOEXEC)
        memory = channel.blob(job.encode())
        try:
            channel.send(self._work, b"J%d" % number, (writer, memory))
        except OSError as error:
            os.close(reader)
            raise LauncherDownError(f"starting a worker: {error}", "the launcher is restarted; try again") from error
        finally:
            os.close(writer)
            os.close(memory)
        os.set_blocking(reader, False)
        loop.add_reader(reader, self._readable, reader, attempt, Unpacker())
        try:
            # One that is late may still come: its frames count until the deadline.
            await asyncio.wait({attempt.started}, timeout=max(0.05, deadline - loop.time()))
            if attempt.started.done():
                attempt.started.result()
        except BaseException:
            loop.remove_reader(reader)
            os.close(reader)
            self._attempts.pop(number, None)
            self._kill(number)
            raise
        return reader

    @staticmethod
    def _readable(reader: int, attempt: _Attempt, unpacker: Unpacker) -> None:
        try:
            data = os.read(reader, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(reader)
            attempt.events.put_nowait(None)
            return
        try:
            for frame in unpacker.feed(data):
                attempt.events.put_nowait(frame)
        except FrameError as error:
            asyncio.get_running_loop().remove_reader(reader)
            attempt.events.put_nowait((Kind.END, f"FAILED\0reading what the worker brought: {error}\0".encode()))

    @staticmethod
    def _take(told: _Told, event: tuple[Kind, bytes], on_part: OnPart, on_doing: OnDoing) -> None:
        kind, payload = event
        if kind is Kind.PART:
            try:
                part = wire.from_bytes(payload, Snapshot)
            except wire.WireError as error:
                raise FrameError(str(error)) from error
            told.parts += 1
            on_part(part)
            return
        text = payload.decode("utf-8", "backslashreplace")
        if kind is Kind.DOING:
            told.doing = text[:500]
        elif kind is Kind.DONE:
            told.done.add(_pid(text))
        elif kind is Kind.MISSED:
            pid, _, why = text.partition(" ")
            told.missed[_pid(pid)] = why[:500]
        elif kind is Kind.PARTIAL:
            detail, _, hint = text.partition("\0")
            told.partial.append((detail[:500], hint[:500]))
        else:
            status, detail, hint = (*text.split("\0"), "", "")[:3]
            if status not in Outcome.Status.__members__:
                raise FrameError(f"an end of kind {status[:40]!r}")
            told.end = (Outcome.Status[status], detail[:2000], hint[:500])
        on_doing(told.doing, len(told.done))

    def _answered(self, work: socket.socket) -> None:
        try:
            message, descriptors = channel.receive(work)
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = b"", []
        if not message:
            if work is self._work:
                self.detach()
            return
        number, _, rest = message[1:].decode("utf-8", "replace").partition(" ")
        attempt = self._attempts.get(int(number)) if number.isdecimal() else None
        if attempt is None or attempt.started.done():
            channel.close_all(descriptors)
        elif message[:1] == b"S" and len(descriptors) == 1 and rest.isdecimal():
            attempt.pidfd = descriptors[0]
            attempt.started.set_result(int(rest))
        else:
            channel.close_all(descriptors)
            attempt.started.set_exception(LauncherDownError(f"starting a worker: refused: {rest[:500]}"))
            attempt.started.exception()

    def _kill(self, number: int) -> None:
        if self._work is not None:
            with contextlib.suppress(OSError):
                channel.send(self._work, b"K%d" % number)

    def _give_up(self, number: int, attempt: _Attempt, collector: Collector, pid: int) -> None:
        self._kill(number)
        if attempt.pidfd is not None:
            self._abandoned.append(_Abandoned(collector.name, pid, collector.tier, attempt.pidfd))


async def _wait(what: Coroutine[Any, Any, _T], timeout_s: float) -> asyncio.Task[_T]:
    """Wait for so long at most. Until Python 3.12 wait_for can swallow a cancellation that comes with the result."""
    task = asyncio.ensure_future(what)
    try:
        await asyncio.wait({task}, timeout=max(0.0, timeout_s))
    finally:
        if not task.done():
            task.cancel()
    return task


def _ending(told: _Told, job: Job, *, timed_out: bool) -> tuple[Outcome.Status, str, str]:
    missed = "; ".join(f"pid {pid}: {why}" for pid, why in list(told.missed.items())[:8])
    if len(told.missed) > 8:  # noqa: PLR2004 - a line must stay a line
        missed += f"; and {len(told.missed) - 8} more"
    said = [*(detail for detail, _ in told.partial), *filter(None, (missed,))]
    hint = "; ".join(dict.fromkeys(hint for _, hint in told.partial if hint))
    if told.end is not None and told.end[0] is not Outcome.Status.OK:
        status, detail, end_hint = told.end
        return status, "; ".join([detail, *said]), end_hint or hint
    if told.end is None and not (
        job.targets and not timed_out and len(told.done | told.missed.keys()) >= len(job.targets)
    ):
        what = f"while {told.doing}" if told.doing else "before it said what it was doing"
        cause = f"stopped at its deadline {what}" if timed_out else f"the worker died {what}"
        status = Outcome.Status.PARTIAL if told.parts else Outcome.Status.TIMED_OUT
        if not timed_out and not told.parts:
            status = Outcome.Status.FAILED
        return status, "; ".join([cause, *said]), hint
    return (Outcome.Status.PARTIAL if said else Outcome.Status.OK), "; ".join(said), hint


def _pid(text: str) -> int:
    if not text.isdecimal():
        raise FrameError(f"{text[:40]!r} is no pid")
    return int(text)
