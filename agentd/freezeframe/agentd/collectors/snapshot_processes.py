"""snapshot_processes: the watched processes in full, with every thread, at two looks.

Reads: /proc/PID/{stat,status,cgroup,exe,limits,fd,ns/net} and, of each thread, /proc/PID/task/TID/{stat,status,
schedstat,wchan,syscall,stack}; nothing that a stuck process can block. Pause of the target: 0. Privilege:
CAP_SYS_PTRACE for system calls, CAP_SYS_ADMIN for kernel stacks, its own or that of freezeframe-kernel-stacks. Cost:
about 60 microseconds per thread and look. Cannot see: user frames; what a thread did between the looks.

Each process is handed over at the first look, and again with what moved after the window. One that ends meanwhile is
handed over as `exited`. Kernel stacks are read of sleeping threads only: a running one's means nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.collectors.find_processes import read_process
from freezeframe.agentd.host import Host, cgroups, kernel_stacks, procfs
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import Process, Snapshot, Thread

_T = TypeVar("_T")
# Refusals of a kernel stack after which no more are asked for.
_ENOUGH_REFUSALS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counters:
    """What a thread has counted at one look."""

    voluntary_switches: int
    involuntary_switches: int
    # Absent on a kernel without it.
    run_delay_ms: float | None

    @classmethod
    def read(cls, directory: str) -> _Counters:
        status = procfs.status(directory)
        return cls(
            voluntary_switches=status.voluntary_switches,
            involuntary_switches=status.involuntary_switches,
            run_delay_ms=_or(None, lambda: procfs.run_delay_ms(directory)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """The first look at one process."""

    target: Target
    process: Process
    # What counts up, by tid.
    counters: dict[int, _Counters]


def collect(job: Job, host: Host, report: Report) -> None:
    """Look once, wait for the window, look again at what moved."""
    begin = host.clock.monotonic()
    collection = _Collection(job, host, report)
    looks = [look for target in job.targets if (look := collection.first(target)) is not None]
    collection.say_what_was_denied()
    if not job.window_ms:
        return
    report.doing("waiting for the second look")
    host.clock.sleep(max(0.0, begin + job.window_ms / 1000.0 - host.clock.monotonic()))
    for look in looks:
        collection.second(look)


class _Collection:
    """One run over the targets of a job."""

    def __init__(self, job: Job, host: Host, report: Report) -> None:
        self._job = job
        self._host = host
        self._report = report
        self._machine = os.uname().machine
        self._boottime_ms = host.clock.boottime() * 1000.0
        self._threads_left = job.caps.threads
        self._kernel_stacks = kernel_stacks.KernelStacks(host)
        self._stacks_denied = 0
        self._calls_denied = 0

    def first(self, target: Target) -> _Look | None:
        """Read all of one process and hand it over; None when there will be no second look at it."""
        pid = target.pid
        directory = self._host.proc(pid)
        self._report.doing(f"reading {directory}")
        try:
            process = read_process(directory, self._boottime_ms)
        except procfs.GoneError:
            self._exited(Process(pid=pid, start_ticks=target.start_ticks))
            return None
        except procfs.ProcfsError as error:
            self._report.missed(pid, str(error))
            return None
        if process is None:
            self._report.missed(pid, "a thread of the kernel, not a process")
            return None
        if process.start_ticks != target.start_ticks:
            self._report.missed(pid, "the process ended and another one has its pid now")
            return None
        threads, counters = self._threads(pid, directory)
        process = replace(
            process,
            threads=threads,
            frozen=cgroups.is_frozen(self._host, self._cgroup(directory)),
            fd_count=_or(None, lambda: procfs.descriptor_count(directory)),
            fd_limit=_or(None, lambda: procfs.descriptor_limit(directory)),
        )
        self._report.part(Snapshot(processes=(process,)))
        if self._job.window_ms:
            return _Look(target=target, process=process, counters=counters)
        self._report.done(pid)
        return None

    def second(self, look: _Look) -> None:
        """Read the counters of one process again and hand it over whole."""
        process = look.process
        directory = self._host.proc(process.pid)
        self._report.doing(f"reading {directory} again")
        try:
            stat = procfs.stat(directory)
        except procfs.GoneError:
            stat = None
        except procfs.ProcfsError as error:
            self._report.missed(process.pid, str(error))
            return
        if stat is None or stat.start_ticks != process.start_ticks:
            self._exited(process)
            return
        process = replace(
            process,
            cpu_ms_delta=max(0.0, stat.cpu_ms - process.cpu_ms),
            threads=tuple(self._moved(directory, thread, look.counters.get(thread.tid)) for thread in process.threads),
        )
        self._report.part(Snapshot(processes=(process,)))
        self._report.done(process.pid)

    def say_what_was_denied(self) -> None:
        """Tell once what no thread showed."""
        if self._stacks_denied:
            self._report.partial(f"kernel stacks of {self._stacks_denied} threads are hidden", kernel_stacks.HINT)
        if self._calls_denied:
            self._report.partial(
                f"system calls of {self._calls_denied} threads are hidden",
                "run the agent as root or grant CAP_SYS_PTRACE",
            )

    def _exited(self, process: Process) -> None:
        self._report.part(Snapshot(processes=(replace(process, exited=True),)))
        self._report.done(process.pid)

    def _cgroup(self, directory: str) -> cgroups.Cgroup:
        return cgroups.parse_cgroup(_or(b"", lambda: procfs.cgroup(directory)))

    def _threads(self, pid: int, directory: str) -> tuple[tuple[Thread, ...], dict[int, _Counters]]:
        none: list[int] = []
        tids = _or(none, lambda: procfs.tids(directory))
        # The main thread first, also when it has the higher number.
        tids.sort(key=lambda tid: (tid != pid, tid))
        if len(tids) > self._threads_left:
            self._report.partial(
                f"truncated: of {len(tids)} threads of pid {pid} {self._threads_left} were read",
                "the cap counts the threads of all watched processes; watch fewer with --pid",
            )
            tids = tids[: self._threads_left]
        self._threads_left -= len(tids)
        threads: list[Thread] = []
        counters: dict[int, _Counters] = {}
        for tid in tids:
            thread_directory = f"{directory}/task/{tid}"
            try:
                threads.append(self._thread(pid, tid, thread_directory))
                if self._job.window_ms:
                    counters[tid] = _Counters.read(thread_directory)
            except procfs.ProcfsError:
                continue  # ended since the list was made
        return tuple(threads), counters

    def _thread(self, pid: int, tid: int, directory: str) -> Thread:
        stat = procfs.stat(directory)
        call = procfs.Syscall(name="", number=-1, arguments=())
        stack: tuple[str, ...] = ()
        if stat.state not in {"Z", "X"}:
            try:
                call = procfs.syscall(directory, self._machine)
            except procfs.DeniedError:
                self._calls_denied += 1
            except procfs.ProcfsError:
                pass  # ended, or a kernel without it
            if stat.state != "R" and not self._stacks_denied_to_all():
                stack = self._kernel_stack(pid, tid)
        return Thread(
            tid=tid,
            name=stat.comm,
            state=stat.state,
            wchan=_or("", lambda: procfs.wchan(directory)),
            syscall=call.name,
            syscall_arguments=call.arguments,
            kernel_stack=stack,
            cpu_ms=stat.cpu_ms,
        )

    def _kernel_stack(self, pid: int, tid: int) -> tuple[str, ...]:
        try:
            return self._kernel_stacks.read(pid, tid)
        except procfs.DeniedError:
            self._stacks_denied += 1
        except procfs.ProcfsError:
            pass  # ended, or a kernel without it
        return ()

    def _stacks_denied_to_all(self) -> bool:
        # The capability is ours, not the target's: after a few refusals the rest would be refused too.
        if self._stacks_denied >= _ENOUGH_REFUSALS:
            self._stacks_denied += 1
            return True
        return False

    @staticmethod
    def _moved(directory: str, thread: Thread, before: _Counters | None) -> Thread:
        thread_directory = f"{directory}/task/{thread.tid}"
        try:
            stat = procfs.stat(thread_directory)
            now = _Counters.read(thread_directory)
        except procfs.ProcfsError:
            return thread  # ended: no second look
        moved = replace(thread, state_after=stat.state, cpu_ms_delta=max(0.0, stat.cpu_ms - thread.cpu_ms))
        if before is None:
            return moved
        delays = (before.run_delay_ms, now.run_delay_ms)
        return replace(
            moved,
            voluntary_switches_delta=max(0, now.voluntary_switches - before.voluntary_switches),
            involuntary_switches_delta=max(0, now.involuntary_switches - before.involuntary_switches),
            run_delay_ms_delta=None if None in delays else max(0.0, (delays[1] or 0.0) - (delays[0] or 0.0)),
        )


def _or(default: _T, read: Callable[[], _T]) -> _T:
    try:
        return read()
    except procfs.ProcfsError:
        return default


SNAPSHOT_PROCESSES = Collector(
    name="snapshot_processes", tier=Tier.LOCK_FREE, collect=collect, wants=lambda _target: True
)
