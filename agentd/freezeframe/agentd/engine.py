"""One capture: runs the collectors in workers, merges what they bring, has it judged. Never raises for one of them.

The order: who is there (lock-free), their command lines (only those not known yet), the serving processes among them,
where other hosts are captured too also who is connected to what these serve; then every collector over these at once.
The first look at the sockets names the clients and proxies, which then get the same looks. The front calls this, so
nothing here blocks or reads a target.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from freezeframe.agentd import assembly
from freezeframe.agentd.capture import CaptureSpec, OnStep, Step
from freezeframe.agentd.collectors.contract import Collector
from freezeframe.agentd.errors import UnknownCollectorError
from freezeframe.agentd.first_seen import FirstSeen
from freezeframe.agentd.gathered import Gathered, merge_outcomes
from freezeframe.agentd.host import Clock
from freezeframe.agentd.jobs import Job, Target
from freezeframe.agentd.last_gpus import LastGpus
from freezeframe.agentd.recorder.history import INTERVAL_S
from freezeframe.judge.correlate.roles import api_ports, as_client
from freezeframe.judge.model import (
    History,
    KernelEvent,
    Meta,
    Metric,
    Outcome,
    Process,
    Series,
    Snapshot,
    Socket,
)

# First steps of every capture: their outcome is told only when it is not OK.
FIND = "find_processes"
READ_COMMAND_LINES = "read_command_lines"
FIND_CALLERS = "find_callers"
# Not steps that can be asked for: three come first in a capture, one belongs to the live view, two to the past,
# two to schedules and triggers.
INTERNAL = (
    FIND, READ_COMMAND_LINES, FIND_CALLERS, "watch_edges", "watch_gauges", "watch_gpus", "watch_path", "run_hook"
)  # fmt: skip
SOCKETS = "snapshot_sockets"
GPUS = "snapshot_gpus"
HISTORY = "read_history"
# A step only where a profile is asked for, by its length and not by its name.
PROFILE = "sample_stacks"

# Share of the deadline for finding processes and command lines: the collectors need the rest.
_FIRST_STEPS_SHARE = 0.3
# Time to find out on which ports this host serves.
_PORTS_MS = 2000.0
# Who takes requests over TCP.
_SERVERS = frozenset({Process.Role.PROXY, Process.Role.ROUTER, Process.Role.ENGINE_HTTP})
# Kept back for judging, packing and sending.
_RESERVE_MS = 250.0


class Runs(Protocol):
    """The launcher's side as the engine sees it (`agentd.workers.Workers`)."""

    async def run(
        self,
        collector: Collector,
        job: Job,
        *,
        on_part: Callable[[Snapshot], None],
        on_doing: Callable[[str, int], None],
    ) -> Outcome:
        """Run one collector over one job; ends by the job's deadline, whatever the worker does."""


class Held(Protocol):
    """Processes held by pidfd for the whole capture (`agentd.pidfds`)."""

    def exited(self) -> frozenset[int]:
        """Those that have ended since."""

    def close(self) -> None:
        """Let go."""


class Serving(Protocol):
    """Finds those that take part in serving, with their roles (`judge.correlate.roles`)."""

    def __call__(
        self, processes: Sequence[Process], sockets: Sequence[Socket], metrics: Sequence[Metric], /
    ) -> tuple[Process, ...]:
        """Sockets and metrics may be empty: they are not known yet."""


class Engine:
    """Captures, one call one snapshot; may run several at once."""

    def __init__(
        self,
        *,
        workers: Runs,
        collectors: Sequence[Collector],
        serving: Serving,
        conclude: Callable[[Snapshot], Snapshot],
        hold: Callable[[Iterable[Target]], Held],
        identity: Meta,
        clock: Clock = Clock(),  # noqa: B008 - frozen
        past: Callable[[Iterable[KernelEvent]], tuple[Series, ...]] = lambda _events: (),
    ) -> None:
        """`identity` has what is the same for every snapshot: host, version, boot, what is configured.

        `past` gives what was sampled beside the recorder, and events of the kernel's log, as series.
        """
        self.workers = workers
        self.collectors = {collector.name: collector for collector in collectors}
        self.serving = serving
        self.conclude = conclude
        self.hold = hold
        self.identity = identity
        self.clock = clock
        self.past = past
        self.next_job = 0
        self.last_gpus = LastGpus()
        # Command lines read before trouble starts, by what changes when a process becomes or calls itself another.
        self.command_lines: dict[tuple[int, float, str, str], Process] = {}
        # What was known when roles were last given, and the same with them.
        self._with_roles: tuple[tuple[Process, ...], tuple[Process, ...]] = ((), ())
        # Ages of asyncio tasks, from one capture to the next.
        self.first_seen = FirstSeen()

    def collector_names(self) -> tuple[str, ...]:
        """Names that --only and --skip take."""
        return tuple(name for name in self.collectors if name not in INTERNAL)

    def known(self) -> tuple[Process, ...]:
        """Processes whose command lines are known, with the roles that these give them."""
        known = tuple(self.command_lines.values())
        # Asked for every few seconds, while command lines are learnt once a minute; roles take milliseconds.
        if self._with_roles[0] != known:
            roles = {process.pid: process for process in self.serving(known, (), ())}
            self._with_roles = known, tuple(roles.get(process.pid, process) for process in known)
        return self._with_roles[1]

    async def warm(self) -> None:
        """Learn the command lines of every process on the host, so that a later capture need not read them."""
        run = _Run(self, CaptureSpec(deadline_ms=20_000.0), lambda _step: None)
        await run.find()

    async def serving_ports(self) -> tuple[int, ...]:
        """TCP ports on which proxies, routers and engines take requests; within two seconds, whatever hangs."""
        run = _Run(self, CaptureSpec(window_ms=0.0, deadline_ms=_PORTS_MS), lambda _step: None)
        return await run.serving_ports()

    async def capture(self, spec: CaptureSpec, on_step: OnStep) -> Snapshot:
        """Capture once. Raises UnknownCollectorError; what goes wrong later is an outcome."""
        unknown = [name for name in (*spec.only, *spec.skip) if name not in self.collector_names()]
        if unknown:
            raise UnknownCollectorError(
                f"reading --only and --skip: there is no collector {unknown[0]!r}",
                f"collectors: {', '.join(self.collector_names())}",
            )
        return await _Run(self, spec, on_step).capture()


class _Run:
    """One capture in progress."""

    def __init__(self, engine: Engine, spec: CaptureSpec, on_step: OnStep) -> None:
        self._engine = engine
        self._spec = spec
        self._on_step = on_step
        self._clock = engine.clock
        self._begin = self._clock.monotonic()
        self._gathered = Gathered()
        self._outcomes: dict[str, list[Outcome]] = {}
        # Pid -> server on another host that it is connected to.
        self._callers: dict[int, str] = {}

    def _left_ms(self) -> float:
        return self._spec.deadline_ms - _RESERVE_MS - (self._clock.monotonic() - self._begin) * 1000.0

    async def capture(self) -> Snapshot:
        engine = self._engine
        started, boottime = self._clock.wall(), self._clock.boottime()
        everyone = await self.find()
        self._miss(everyone)
        await self._find_callers()
        first = self._choose(self._serving(everyone, (), ()), everyone)
        held = [engine.hold(as_target(process) for process in first)]
        try:
            await self._look(everyone, first, held)
            ended = frozenset().union(*(each.exited() for each in held))
        finally:
            for each in held:
                each.close()
        sockets = self._gathered.records("sockets")
        looked_at = {process.pid for process in self._gathered.records("processes")}
        roles = self._serving(self._known(everyone), sockets, self._gathered.records("metrics"))
        self._gathered.add(Snapshot(processes=tuple(each for each in roles if each.pid in looked_at)))
        snapshot = self._gathered.snapshot(ended=ended)
        whole = replace(
            assembly.about(replace(snapshot, history=self._past(snapshot)), looked_at),
            meta=assembly.meta(
                engine.identity,
                self._spec,
                started_s=started,
                boottime_s=boottime,
                duration_ms=(self._clock.monotonic() - self._begin) * 1000.0,
            ),
            outcomes=self._all_outcomes(),
        )
        gpus = engine.last_gpus.complete(whole.gpus, self._clock.monotonic(), asked=GPUS in self._outcomes)
        tasks = engine.first_seen.date(whole.asyncio_tasks, everyone, self._clock.monotonic())
        whole = replace(whole, gpus=gpus, asyncio_tasks=tasks)
        # Pure, but long on a big host: the loop must go on answering health checks.
        return await asyncio.to_thread(engine.conclude, whole)

    def _past(self, snapshot: Snapshot) -> History | None:
        """The recorder's past with what was sampled beside it, where the past is wanted."""
        if self._not_asked(HISTORY) or HISTORY not in self._engine.collectors:
            return snapshot.history
        more = self._engine.past(snapshot.kernel_events)
        if not more:
            return snapshot.history
        recorded = snapshot.history or History(interval_ms=INTERVAL_S * 1000.0)
        return replace(recorded, series=(*recorded.series, *more))

    def _miss(self, everyone: Sequence[Process]) -> None:
        """Say which of the processes that were asked for are not here."""
        client = self._spec.client_pid
        asked = {*self._spec.pids, *(() if client is None else (client,))}
        gone = sorted(asked - {process.pid for process in everyone})
        if gone and FIND not in self._outcomes:
            self._outcomes[FIND] = [
                Outcome(
                    collector=FIND,
                    status=Outcome.Status.PARTIAL,
                    detail="; ".join(f"pid {pid}: no process has it now, or a kernel thread" for pid in gone),
                    hint="look up the pid again: the pids are those that the agent's host sees",
                    pids_missed=tuple(gone),
                )
            ]

    async def find(self) -> tuple[Process, ...]:
        """All processes of the host, with their command lines as far as they are known or can be read."""
        share = self._spec.deadline_ms * _FIRST_STEPS_SHARE
        found = Gathered()
        await self._run_first(FIND, (), found, share)
        processes: tuple[Process, ...] = found.records("processes")
        known = self._engine.command_lines
        present = {_program(process): process for process in processes}
        for key in [key for key in known if key not in present]:
            del known[key]
        unread = tuple(as_target(process) for key, process in present.items() if key not in known)
        if unread:
            lines = Gathered()
            await self._run_first(READ_COMMAND_LINES, unread, lines, share)
            keys = {process.pid: key for key, process in present.items()}
            for process in lines.records("processes"):
                found.add(Snapshot(processes=(process,)))
                # A stall ends: what could not be read is tried again at the next capture.
                if process.pid in keys and not process.memory_blocked:
                    known[keys[process.pid]] = process
        found.add(Snapshot(processes=tuple(known[key] for key in present if key in known)))
        return found.records("processes")

    async def serving_ports(self) -> tuple[int, ...]:
        """Where requests are taken, by a look at the sockets of those that serve."""
        everyone = await self.find()
        first = self._engine.serving(everyone, (), ())
        await self._run_first(SOCKETS, tuple(map(as_target, first)), self._gathered, self._left_ms())
        roles = self._engine.serving(everyone, self._gathered.records("sockets"), ())
        return tuple(sorted({port for each in roles if each.role in _SERVERS for port in api_ports(each)}))

    async def _find_callers(self) -> None:
        """Who is connected to what other hosts serve."""
        if self._spec.toward:
            found = Gathered()
            await self._run_first(FIND_CALLERS, (), found, self._spec.deadline_ms * _FIRST_STEPS_SHARE)
            self._callers = {each.pid: each.remote for each in found.records("sockets") if each.pid is not None}

    def _serving(
        self, processes: Sequence[Process], sockets: Sequence[Socket], metrics: Sequence[Metric]
    ) -> tuple[Process, ...]:
        """Those that take part in serving here, and the clients of other hosts."""
        found = self._engine.serving(processes, sockets, metrics)
        known = {process.pid for process in found}
        callers = (each for each in processes if each.pid in self._callers and each.pid not in known)
        return (*found, *(as_client(each, self._callers[each.pid]) for each in callers))

    async def _run_first(self, name: str, targets: tuple[Target, ...], into: Gathered, share_ms: float) -> None:
        collector = self._engine.collectors.get(name)
        if collector is None:
            return
        outcome = await self._run_job(collector, targets, into.add, min(share_ms, self._left_ms()))
        if outcome.status not in (Outcome.Status.OK, Outcome.Status.SKIPPED):
            self._outcomes.setdefault(name, []).append(outcome)

    def _choose(self, serving: tuple[Process, ...], everyone: Sequence[Process]) -> tuple[Process, ...]:
        """The serving processes, or those that were asked for, whether they have a role or not."""
        if not self._spec.pids:
            return serving
        roles = {process.pid: process for process in serving}
        wanted = frozenset(self._spec.pids)
        return tuple(roles.get(each.pid, each) for each in everyone if each.pid in wanted)

    def _known(self, everyone: Sequence[Process]) -> tuple[Process, ...]:
        latest = {process.pid: process for process in everyone}
        latest.update({process.pid: process for process in self._gathered.records("processes")})
        return tuple(latest.values())

    async def _look(self, everyone: Sequence[Process], first: tuple[Process, ...], held: list[Held]) -> None:
        self._gathered.add(Snapshot(processes=first))
        sockets_seen = asyncio.Event()
        tasks = self._start(self._plan(first, hosts_too=True), sockets_seen)
        try:
            if any(collector.name == SOCKETS for collector, _ in self._plan(first, hosts_too=True)):
                await sockets_seen.wait()
            later = self._later(everyone, {process.pid for process in first})
            if later:
                held.append(self._engine.hold(as_target(process) for process in later))
                self._gathered.add(Snapshot(processes=later))
                tasks += self._start(self._plan(later, hosts_too=False), sockets_seen)
            await asyncio.gather(*tasks)
        finally:
            # Whoever asked may have gone, also before the sockets were seen: no worker runs on for nobody.
            for task in tasks:
                task.cancel()

    def _start(
        self, plan: Iterable[tuple[Collector, tuple[Target, ...]]], sockets_seen: asyncio.Event
    ) -> list[asyncio.Future[None]]:
        return [asyncio.ensure_future(self._collect(collector, targets, sockets_seen)) for collector, targets in plan]

    def _later(self, everyone: Sequence[Process], seen: set[int]) -> tuple[Process, ...]:
        """Those that the first look at the sockets named; where processes were asked for, only their peers."""
        sockets = self._gathered.records("sockets")
        serving = self._serving(everyone, sockets, ())
        asked = frozenset(self._spec.pids)
        peers = {each.peer_pid for each in sockets if each.pid in asked}
        peers |= {each.pid for each in sockets if each.peer_pid in asked}
        return tuple(each for each in serving if each.pid not in seen and (not asked or each.pid in peers))

    def _plan(self, processes: Sequence[Process], *, hosts_too: bool) -> list[tuple[Collector, tuple[Target, ...]]]:
        plan = []
        targets = tuple(as_target(process) for process in processes)
        for collector in self._engine.collectors.values():
            if collector.name in INTERNAL or self._not_asked(collector.name):
                continue
            # A collector over the whole host runs once; so does the one over sockets, which finds the peers itself.
            if collector.wants is None or collector.name == SOCKETS:
                if hosts_too:
                    plan.append((collector, targets))
                continue
            chosen = tuple(target for target in targets if collector.wants(target))
            if chosen:
                plan.append((collector, chosen))
        return plan

    def _not_asked(self, name: str) -> bool:
        if name == PROFILE:
            return not self._spec.profile_s or name in self._spec.skip
        return (bool(self._spec.only) and name not in self._spec.only) or name in self._spec.skip

    async def _collect(self, collector: Collector, targets: tuple[Target, ...], sockets_seen: asyncio.Event) -> None:
        self._on_step(Step(collector=collector.name, total=len(targets)))

        def doing(what: str, done: int) -> None:
            # The sockets of a target are done when its first look was handed over.
            if collector.name == SOCKETS and done >= len(targets):
                sockets_seen.set()
            self._on_step(Step(collector=collector.name, doing=what, done=done, total=len(targets)))

        try:
            outcome = await self._run_job(collector, targets, self._gathered.add, self._left_ms(), doing)
        finally:
            if collector.name == SOCKETS:
                sockets_seen.set()
        self._outcomes.setdefault(collector.name, []).append(outcome)
        self._on_step(Step(collector=collector.name, outcome=outcome, done=len(targets), total=len(targets)))

    async def _run_job(
        self,
        collector: Collector,
        targets: tuple[Target, ...],
        on_part: Callable[[Snapshot], None],
        deadline_ms: float,
        on_doing: Callable[[str, int], None] = lambda _what, _done: None,
    ) -> Outcome:
        self._engine.next_job += 1
        window_ms = min(self._spec.window_ms, max(0.0, deadline_ms * 0.6))
        job = Job(
            job_id=self._engine.next_job,
            collector=collector.name,
            targets=targets,
            window_ms=0.0 if collector.name in INTERNAL else window_ms,
            deadline_ms=max(1.0, deadline_ms),
            allow_seize=self._spec.allow_seize,
            profile_s=self._spec.profile_s,
            toward=self._spec.toward if collector.name == FIND_CALLERS else (),
        )
        try:
            return await self._engine.workers.run(collector, job, on_part=on_part, on_doing=on_doing)
        except Exception as error:  # noqa: BLE001 - a snapshot with 9 of 10 collectors is a success
            return Outcome(
                collector=collector.name,
                status=Outcome.Status.FAILED,
                detail=f"running {collector.name}: {error or error!r}",
                hint="the agent's log has the traceback",
            )

    def _all_outcomes(self) -> tuple[Outcome, ...]:
        outcomes = []
        for name in self._engine.collectors:
            if name in self._outcomes:
                outcomes.append(merge_outcomes(name, self._outcomes[name]))
            elif name not in INTERNAL and (name != PROFILE or self._spec.profile_s):
                why = "not asked for" if self._not_asked(name) else "no process here that it looks at"
                outcomes.append(Outcome(collector=name, status=Outcome.Status.SKIPPED, detail=why))
        return tuple(outcomes)


def _program(process: Process) -> tuple[int, float, str, str]:
    return process.pid, process.start_ticks, process.comm, process.exe


def as_target(process: Process) -> Target:
    """What a job says of a process."""
    return Target(
        pid=process.pid,
        start_ticks=int(process.start_ticks),
        role=process.role,
        engine_pid=process.engine_pid,
        python=process.python,
        ports=process.listening_ports,
        product=process.product,
        memory_blocked=process.memory_blocked,
    )
