"""The front's side of the workers: runs one collector under its deadline, whatever its worker does.

Nothing here blocks and nothing here raises for a worker: every run ends in an Outcome, at the deadline at the latest.
A worker that is killed is never waited for; until the launcher says that it has ended it counts as abandoned.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from enum import Enum, auto

from freezeframe.agentd import bounded
from freezeframe.agentd.channel import Channel, Message
from freezeframe.agentd.collectors.contract import Collector, Tier
from freezeframe.agentd.ends import Ends
from freezeframe.agentd.errors import LauncherDownError
from freezeframe.agentd.frames import RUN_BYTES, Frame, FrameDecoder, FramingError, Part, Slot
from freezeframe.agentd.groups import group_lives
from freezeframe.agentd.jobs import Job, Target
from freezeframe.agentd.link import Link, Worker
from freezeframe.agentd.progress import Progress
from freezeframe.agentd.quarantine import Abandoned, Quarantine
from freezeframe.judge.model import Outcome, Process, Snapshot
from freezeframe.judge.wire import WireError, from_bytes

OnPart = Callable[[Snapshot], None]
OnDoing = Callable[[str, int], None]

Status = Outcome.Status

# Frames taken before others get their turn.
_FRAMES_AT_ONCE = 128
# Parts over this size are decoded in a thread.
_INLINE_BYTES = 32 * 1024
# How often the slot is looked at, seconds.
_LOOK_S = 0.05
_RESIDENT_LOOK_S = 1.0
# A target counts as stuck after so many looks at least, so that a pause of our own is not taken for one of its.
_STUCK_LOOKS = 4
# How long the exit status of a worker that closed its pipe is waited for, seconds.
_STATUS_S = 0.1
# How many launchers may be lost in one run.
_LAUNCHERS = 3
# How long helper programs of a worker that has ended may take to end after SIGKILL, seconds.
_HELPERS_S = 0.2
# So often for the end of a worker that has said that it ends.
_END_TRIES = 5


class _Why(Enum):
    """Why a worker's turn is over."""

    ENDED = auto()
    DEADLINE = auto()
    STUCK = auto()
    CRASHED = auto()
    LOST = auto()
    REFUSED = auto()
    BROKE = auto()
    CANCELLED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stop:
    why: _Why
    detail: str = ""
    # The targets at work, as far as that is known; the first one above all.
    targets: tuple[int, ...] = ()


class Workers:
    """Runs collectors in workers of whichever launcher is attached."""

    def __init__(self, *, quarantine: Quarantine | None = None) -> None:
        """Start with no launcher."""
        self._quarantine = quarantine or Quarantine()
        self._link: Link | None = None
        self._attached = asyncio.Event()
        # Abandoned workers of launchers that have ended: nobody tells of their end.
        self._orphans: set[int] = set()

    @property
    def attached(self) -> bool:
        """Whether there is a launcher."""
        return self._attached.is_set()

    def abandoned(self) -> int:
        """Count the workers that were killed and have not ended."""
        self._forget_ended()
        return len(self._quarantine.workers())

    def attach(self, work: socket.socket) -> None:
        """Use the launcher at the other end from now on; runs under way on another one are given to it."""
        self.detach()
        self._link = Link(Channel(work), on_started=self._on_started, on_other=self._on_other, on_lost=self._on_lost)
        self._attached.set()

    def detach(self) -> None:
        """Let go of the launcher, which ends every worker of ours."""
        if self._link is not None:
            self._link.close()

    async def run(self, collector: Collector, job: Job, *, on_part: OnPart, on_doing: OnDoing) -> Outcome:
        """Run a collector until it ends, or its job's deadline: at most `deadline_ms` and some milliseconds.

        `on_part` gets each part in the order it was sent; `on_doing` what it does now and how many targets are done, at
        most 20 times a second. Cancelling kills its worker at once.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        run = _Run(collector, job, started + job.deadline_ms / 1000, on_part, on_doing)
        launchers_lost = 0
        while (targets := self._allowed(run)) is not None:
            stop = await self._turn(run, targets)
            launchers_lost += stop.why is _Why.LOST
            if not _goes_on(run, stop, launchers_lost):
                break
        return run.progress.outcome(collector.name, (loop.time() - started) * 1000)

    def _allowed(self, run: _Run) -> tuple[Target, ...] | None:
        """Give the targets for the next worker, without those in quarantine; None when there is nothing to do."""
        self._forget_ended()
        if refusal := self._quarantine.refusal(run.collector):
            run.progress.problem(refusal, Status.SKIPPED)
            return None
        for target in run.progress.remaining():
            if refusal := self._quarantine.refusal(run.collector, target.pid):
                run.progress.leave_out(target.pid, refusal, Status.SKIPPED)
        remaining = run.progress.remaining()
        return remaining if remaining or not run.job.targets else None

    async def _turn(self, run: _Run, targets: tuple[Target, ...]) -> _Stop:
        """Have one worker work on these targets."""
        if self._link is None and not await _before(run.deadline, self._attached.wait()):
            return _Stop(why=_Why.REFUSED, detail="starting a worker: the launcher is not there")
        link = self._link
        left_ms = (run.deadline - asyncio.get_running_loop().time()) * 1000
        if link is None or left_ms <= 0:
            return _Stop(why=_Why.DEADLINE, detail="stopped at its deadline")
        try:
            ends = Ends(replace(run.job, targets=targets, deadline_ms=left_ms))
        except OSError as error:
            return _Stop(why=_Why.REFUSED, detail=f"starting a worker: {error.strerror}")
        with closing(ends):
            try:
                worker = link.start(run.collector, slot=ends.slot, pipe=ends.write, wake=ends.wake)
            except LauncherDownError as error:
                return _Stop(why=_Why.LOST if link.closed else _Why.REFUSED, detail=error.detail)
            ends.close_write()
            stop = None
            try:
                stop = await _follow(run, link, worker, ends)
            finally:
                self._end(run, link, worker, stop or _Stop(why=_Why.CANCELLED, targets=_at_work(run, ends.slot_now())))
        return stop

    def _end(self, run: _Run, link: Link, worker: Worker, stop: _Stop) -> None:
        """Have the worker killed, also after its own end: nothing of it may run on."""
        worker.ended = stop.why is _Why.ENDED
        # What a helper that outlives its worker is stuck on was told as missed.
        link.kill(worker, run.progress.missed if worker.ended else frozenset(stop.targets))
        if worker.ended:
            asyncio.get_running_loop().call_later(_HELPERS_S, self._abandon, link, worker)
        else:
            self._abandon(link, worker)

    def _abandon(self, link: Link, worker: Worker, tries: int = _END_TRIES) -> None:
        if not worker.pid or worker.gone:
            return
        if worker.ended and worker.status is None and not link.closed and tries:
            # The launcher has not seen its end yet. It never may: a thread of it can be stuck in the kernel.
            asyncio.get_running_loop().call_later(_HELPERS_S, self._abandon, link, worker, tries - 1)
            return
        targets = worker.killed_over or frozenset()
        abandoned = Abandoned(worker_pid=worker.pid, collector=worker.collector.name, targets=targets)
        self._quarantine.add(abandoned, worker.collector.tier)
        if link.closed:
            self._orphans.add(worker.pid)

    def _on_started(self, link: Link, worker: Worker) -> None:
        # Killed before it was known to run.
        if worker.killed_over is not None and not worker.ended:
            self._abandon(link, worker)

    def _on_other(self, message: Message) -> None:
        pid = message.number("pid")
        if message.op == "gone":
            self._quarantine.remove(pid)
        elif message.op == "abandoned" and message.number("tier") in {tier.value for tier in Tier}:
            targets = frozenset(int(each) for each in message.text("targets").split(",") if each.isdecimal())
            abandoned = Abandoned(worker_pid=pid, collector=message.text("collector"), targets=targets)
            self._quarantine.add(abandoned, Tier(message.number("tier")))

    def _on_lost(self) -> None:
        self._link = None
        self._attached.clear()
        self._orphans.update(abandoned.worker_pid for abandoned in self._quarantine.workers())

    def _forget_ended(self) -> None:
        for pid in [pid for pid in self._orphans if not group_lives(pid)]:
            self._orphans.discard(pid)
            self._quarantine.remove(pid)


class _Run:
    """One call of `run`."""

    def __init__(self, collector: Collector, job: Job, deadline: float, on_part: OnPart, on_doing: OnDoing) -> None:
        self.collector = collector
        self.job = job
        # On the loop's clock.
        self.deadline = deadline
        self.on_part = on_part
        self.on_doing = on_doing
        self.progress = Progress(job)
        self.received_bytes = 0


class _Watch:
    """Looks at the slot now and then, tells what is being done, and notices a target that is stuck."""

    def __init__(self, run: _Run, now: float) -> None:
        self._run = run
        patience_ms = run.collector.patience_ms
        self._patience_s = float("inf") if patience_ms is None else patience_ms / 1000
        look_s = _RESIDENT_LOOK_S if run.collector.resident else _LOOK_S
        self._period_s = min(look_s, self._patience_s / _STUCK_LOOKS)
        self._told = ("", -1)
        self._since = now
        self._same_looks = 0
        self.slot = Slot()
        self.next_look = now

    def look(self, now: float, slot: Slot) -> tuple[int, ...]:
        """Look; gives the targets at work when they are stuck."""
        self.next_look = now + self._period_s
        if slot.count != self.slot.count:
            self._since, self._same_looks = now, 0
        else:
            self._same_looks += 1
        self.slot = slot
        telling = (slot.doing, self._run.progress.done)
        if telling != self._told:
            self._told = telling
            self._run.on_doing(*telling)
        patient = now - self._since < self._patience_s or self._same_looks < _STUCK_LOOKS
        return () if patient else _at_work(self._run, slot)


async def _follow(run: _Run, link: Link, worker: Worker, ends: Ends) -> _Stop:
    """Take what the worker sends until it ends, is stuck or runs out of time. Kills nothing."""
    loop = asyncio.get_running_loop()
    decoder = FrameDecoder()
    watch = _Watch(run, loop.time())
    while True:
        data = ends.read()
        if data:
            run.received_bytes += len(data)
            if run.received_bytes > RUN_BYTES:
                return _Stop(why=_Why.BROKE, detail=f"over {RUN_BYTES // 1024**2} MiB came; the rest was dropped")
            try:
                await _take(run, decoder.feed(data))
            except (FramingError, WireError) as error:
                return _Stop(why=_Why.BROKE, detail=f"reading what the worker brought: {error}")
            if run.progress.ended:
                return _Stop(why=_Why.ENDED)
        now = loop.time()
        if now >= run.deadline:
            return _deadline(run, worker, ends.slot_now())
        if now >= watch.next_look and (stuck := watch.look(now, ends.slot_now())):
            detail = f"no answer within {run.collector.patience_ms:.0f} ms: {watch.slot.doing}"
            return _Stop(why=_Why.STUCK, targets=stuck, detail=detail)
        if data:
            continue
        if data is None and not link.closed and not worker.refused:
            await ends.wait(min(run.deadline, watch.next_look))
            continue
        return await _ended_early(run, link, worker, ends)


async def _take(run: _Run, frames: Sequence[Frame]) -> None:
    for number, frame in enumerate(frames, 1):
        if isinstance(frame, Part):
            part = await _decode(frame.data, run.deadline)
            if part is None:
                return
            run.progress.parts += 1
            run.on_part(part)
        else:
            run.progress.take(frame)
        if number % _FRAMES_AT_ONCE == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(0)


async def _decode(data: bytes, deadline: float) -> Snapshot | None:
    """Decode a part without keeping the loop to itself; None when the deadline comes first."""
    if len(data) <= _INLINE_BYTES:
        return from_bytes(data, Snapshot)
    loop = asyncio.get_running_loop()
    decoding = loop.run_in_executor(None, from_bytes, data, Snapshot)
    await asyncio.wait({decoding}, timeout=deadline - loop.time())
    return decoding.result() if decoding.done() else None


async def _ended_early(run: _Run, link: Link, worker: Worker, ends: Ends) -> _Stop:
    """Say why a worker closed its pipe before its last frame."""
    loop = asyncio.get_running_loop()
    until = min(run.deadline, loop.time() + _STATUS_S)
    while worker.status is None and not link.closed and not worker.refused and loop.time() < until:
        await _before(until, ends.wake.wait())
        ends.wake.clear()
    slot = ends.slot_now()
    targets = _at_work(run, slot)
    during = f" while {slot.doing}" if slot.doing else ""
    if worker.refused:
        return _Stop(why=_Why.REFUSED, detail=worker.refused)
    if worker.status is None and link.closed:
        return _Stop(why=_Why.LOST, detail=f"the launcher ended{during}", targets=targets)
    return _Stop(why=_Why.CRASHED, detail=f"the worker {_ending(worker.status)}{during}", targets=targets)


def _ending(status: int | None) -> str:
    if status is None:
        return "closed its pipe"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        return f"was killed by {name}" + (" (out of memory?)" if number == signal.SIGKILL else "")
    return f"ended with status {os.WEXITSTATUS(status)}"


def _deadline(run: _Run, worker: Worker, slot: Slot) -> _Stop:
    doing = f" while {slot.doing}" if slot.doing else " before it said what it was doing"
    if not worker.pid:
        doing = " before its worker had started"
    return _Stop(why=_Why.DEADLINE, detail=f"stopped at its deadline{doing}", targets=_at_work(run, slot))


def _at_work(run: _Run, slot: Slot) -> tuple[int, ...]:
    remaining = {target.pid for target in run.progress.remaining()}
    named = run.progress.named_in(slot.doing) if slot.at_work else ()
    return tuple(pid for pid in named if pid in remaining)


def _goes_on(run: _Run, stop: _Stop, launchers_lost: int) -> bool:
    """Keep what came of a turn; whether a fresh worker goes on with the targets that are left."""
    if stop.why is _Why.ENDED:
        return False
    if stop.why is _Why.LOST and launchers_lost < _LAUNCHERS:
        return True
    if stop.targets and stop.why in (_Why.STUCK, _Why.CRASHED):
        stuck = stop.why is _Why.STUCK
        run.progress.leave_out(stop.targets[0], stop.detail, Status.TIMED_OUT if stuck else Status.FAILED)
        if stuck and run.collector.tier is Tier.MEMORY:
            run.on_part(Snapshot(processes=(Process(pid=stop.targets[0], memory_blocked=True),)))
        return True
    run.progress.problem(stop.detail, Status.TIMED_OUT if stop.why is _Why.DEADLINE else Status.FAILED)
    return False


async def _before(deadline: float, awaitable: Awaitable[object]) -> bool:
    """Wait for something, but no longer than a moment on the loop's clock; whether it came."""
    try:
        await bounded.wait(awaitable, max(0.0, deadline - asyncio.get_running_loop().time()))
    except asyncio.TimeoutError:
        return False
    return True
