"""sample_stacks: what the threads of the watched processes run, over some seconds, and what they wait in meanwhile.

Only when a profile is asked for (`snap --profile SECONDS`). A perf event per thread fires at 49 Hz of that thread's CPU
time and copies its registers and 16 KiB of its stack; the copies are unwound by libdw when the time is over. As each
sample of a thread of CPython comes, our own walker reads that thread's Python frames: a millisecond later, so a sample
that lies between two functions may have the frames of the other; of a thread that sleeps by then none are told. Ten
times a second the threads that are off the CPU are asked what system call they are in.

Pause of the target: 0 (no ptrace, no signal): the kernel copies in the thread's own timer interrupt, 10 microseconds a
sample. Privilege: CAP_PERFMON, CAP_SYS_PTRACE for Python frames, CAP_SYS_ADMIN for map_files. Cost: 1 ms of CPU per
sample of Python, 0.3 ms of another; what the deadline does not leave time for is told as not unwound. Cannot see:
threads that begin after it; more than 256 threads (those that used the most CPU time are taken); what lies beyond
16 KiB of a stack.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from freezeframe.agentd.collectors.contract import Collector, Report, SkippedError, Tier, UnavailableError
from freezeframe.agentd.collectors.readable import host_tids, may_be_read
from freezeframe.agentd.collectors.snapshot_native_stacks import this_machine
from freezeframe.agentd.host import Host, procfs
from freezeframe.agentd.host.cpython.frames import Codes, short_path
from freezeframe.agentd.host.cpython.interpreter import Interpreter, NotPythonError, UnsupportedPythonError, attach
from freezeframe.agentd.host.cpython.threads import PythonState, StackWalker, threads_of
from freezeframe.agentd.host.native import libdw
from freezeframe.agentd.host.native.files import AddressSpace, Files
from freezeframe.agentd.host.native.machine import Machine
from freezeframe.agentd.host.native.perf_events import PerfError, Sample, Sampler
from freezeframe.agentd.host.native.samples import Frames, SampledProcess
from freezeframe.agentd.host.native.symbols import SymbolCache
from freezeframe.agentd.host.target_memory import TargetMemory, TargetMemoryError
from freezeframe.agentd.host.waits import reader
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import Frame, ProfileStack, ProfileThread, ProfileWait, Snapshot

HZ = 49
_STACK_BYTES = 16 * 1024
_THREADS = 256
# Copies kept until they are unwound, of all threads.
_KEPT_BYTES = 256 * 1024 * 1024
_WALK_BYTES = 256 * 1024 * 1024
_LOOK_S = 0.1
# Shares of the job's time: the samples, then until what remains is not unwound any more.
_SAMPLING_SHARE, _UNWINDING_SHARE = 0.7, 0.9
# Told of each thread.
_STACKS, _WAITS = 50, 6
_PATIENCE_MS = 2000.0


@dataclass(slots=True, kw_only=True)
class _Thread:
    """One thread while it is watched."""

    pid: int
    tid: int
    name: str
    directory: str
    # Milliseconds on a CPU, and ready to run without one, at the start.
    began: tuple[float, float]
    spent: tuple[float, float] = (0.0, 0.0)
    samples: list[tuple[Sample, tuple[Frame, ...]]] = field(default_factory=list)
    # Looks at which it was off the CPU, by system call, and all looks.
    waits: Counter[str] = field(default_factory=Counter)
    looks: int = 0
    dropped: int = 0


class _Python:
    """Reads the Python frames of one process's threads while these run."""

    def __init__(self, interpreter: Interpreter, pid: int, directory: str) -> None:
        self._walker = StackWalker(interpreter, Codes(interpreter.objects))
        self._lasting = interpreter.objects.lasting
        self._states: dict[int, PythonState] = {}
        inside, own = host_tids(directory), frozenset(procfs.tids(directory))
        states = threads_of(interpreter)
        for state in states:
            tid = state.native if inside is None else inside.get(state.native, 0)
            # Until 3.10 the main thread of a forked process goes by the number of its parent's.
            if tid not in own and (state.name == "MainThread" or len(states) == 1):
                tid = pid
            self._states[tid] = state

    def frames(self, tid: int, limit: int) -> tuple[Frame, ...]:
        """Frames of a thread, innermost first; none where it has none or moves on too fast."""
        state = self._states.get(tid)
        if state is None:
            return ()
        try:
            return tuple(
                Frame(function=frame.place.function, file=short_path(frame.place.file), line=frame.place.line)
                for frame in self._walker.walk(state, limit)
            )
        except TargetMemoryError:
            # Code may have been made where something else was when the page was read.
            self._lasting.forget()
            return ()


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over a ProfileThread per thread when the time is over."""
    if not job.profile_s:
        raise SkippedError("not asked for: snap --profile SECONDS")
    machine = this_machine()
    try:
        libdw.load()
    except libdw.LibdwError as error:
        raise UnavailableError(str(error), "apt install libdw1, or: dnf install elfutils-libs") from error
    begin = host.clock.monotonic()
    targets = [target for target in job.targets if may_be_read(target, host, report)]
    threads = _threads(targets, host, report)
    pythons = {target.pid: _attach(target, job, host, report) for target in targets if target.python}
    sampler = Sampler(machine, hz=HZ, stack_bytes=_STACK_BYTES)
    try:
        watched = _watch(sampler, threads, report)
        began = host.clock.monotonic()
        until = min(began + job.profile_s, begin + job.deadline_ms / 1000.0 * _SAMPLING_SHARE)
        _sample(sampler, watched, pythons, until, job, host, report)
        duration_ms = (host.clock.monotonic() - began) * 1000.0
    finally:
        sampler.close()
    give_up = begin + job.deadline_ms / 1000.0 * _UNWINDING_SHARE
    symbols = SymbolCache(f"{host.state_dir}/symbols" if host.state_dir else None)
    files = Files(symbols)
    for target in targets:
        own = [thread for thread in watched.values() if thread.pid == target.pid]
        if own:
            told = _unwind(target, own, machine, files, job, host, report, give_up)
            report.part(Snapshot(profile=tuple(_told(each, duration_ms, sampler.lost, told) for each in own)))
        report.done(target.pid)


def _threads(targets: Iterable[Target], host: Host, report: Report) -> list[_Thread]:
    """Threads of the targets, those that used the most CPU time first."""
    found = []
    for target in targets:
        directory = host.proc(target.pid)
        with suppress(procfs.ProcfsError):  # ended
            for tid in procfs.tids(directory):
                with suppress(procfs.ProcfsError):
                    thread = f"{directory}/task/{tid}"
                    found.append(
                        _Thread(
                            pid=target.pid,
                            tid=tid,
                            name=procfs.stat(thread).comm,
                            directory=thread,
                            began=procfs.run_times(thread),
                        )
                    )
    if len(found) > _THREADS:
        report.partial(
            f"of {len(found)} threads the {_THREADS} that used the most CPU time were sampled",
            "watch fewer processes with --pid",
        )
    return sorted(found, key=lambda thread: -thread.began[0])[:_THREADS]


def _attach(target: Target, job: Job, host: Host, report: Report) -> _Python | None:
    def beat() -> None:
        report.doing(f"reading the memory of {target.pid}")

    directory = host.proc(target.pid)
    memory = TargetMemory(
        target.pid,
        max_bytes=_WALK_BYTES,
        until=host.clock.monotonic() + job.deadline_ms / 1000.0 * _SAMPLING_SHARE,
        monotonic=host.clock.monotonic,
        beat=beat,
    )
    try:
        return _Python(attach(directory, memory, os.uname().machine), target.pid, directory)
    except NotPythonError:
        return None
    except (UnsupportedPythonError, TargetMemoryError, procfs.ProcfsError, OSError) as error:
        report.missed(target.pid, f"without its Python frames: {error}")
        return None


def _watch(sampler: Sampler, threads: Iterable[_Thread], report: Report) -> dict[int, _Thread]:
    """Open an event for each thread. Raises UnavailableError when none can be."""
    watched: dict[int, _Thread] = {}
    failure: PerfError | None = None
    for thread in threads:
        try:
            sampler.watch(thread.tid)
        except ProcessLookupError:
            continue  # ended
        except PerfError as error:
            failure = error
            continue
        watched[thread.tid] = thread
    if failure is not None and not watched:
        raise UnavailableError(str(failure), failure.hint)
    if failure is not None:
        report.partial(str(failure), failure.hint)
    return watched


def _sample(
    sampler: Sampler,
    watched: dict[int, _Thread],
    pythons: dict[int, _Python | None],
    until: float,
    job: Job,
    host: Host,
    report: Report,
) -> None:
    kept = 0
    look = host.clock.monotonic()
    report.doing("waiting for the second look")
    sampler.start()
    while (now := host.clock.monotonic()) < until:
        if now >= look:
            look = now + _LOOK_S
            for thread in watched.values():
                _look(thread)
        for sample in sampler.wait(min(look, until) - now):
            thread = watched[sample.tid]
            if kept + len(sample.stack) > _KEPT_BYTES:
                thread.dropped += 1
                continue
            kept += len(sample.stack)
            python = pythons.get(thread.pid)
            frames = python.frames(sample.tid, job.caps.frames) if python is not None else ()
            # One that has gone to sleep since is somewhere else.
            thread.samples.append((sample, frames if frames and _runs(thread) else ()))
    for thread in watched.values():
        with suppress(procfs.ProcfsError):  # ended: what it used is not known
            now_ms = procfs.run_times(thread.directory)
            thread.spent = (now_ms[0] - thread.began[0], now_ms[1] - thread.began[1])


def _runs(thread: _Thread) -> bool:
    with suppress(procfs.ProcfsError):
        return procfs.stat(thread.directory).state == "R"
    return False


def _look(thread: _Thread) -> None:
    with suppress(procfs.ProcfsError):
        state = procfs.stat(thread.directory).state
        thread.looks += 1
        if state in {"S", "D", "I"}:
            call = procfs.syscall(thread.directory, os.uname().machine).name
            thread.waits[f"{call} (uninterruptible)" if state == "D" else call] += 1
        elif state in {"T", "t"}:
            thread.waits["stopped"] += 1


def _unwind(
    target: Target,
    threads: Sequence[_Thread],
    machine: Machine,
    files: Files,
    job: Job,
    host: Host,
    report: Report,
    give_up: float,
) -> dict[int, tuple[Counter[Frames], str]]:
    """Stacks with their counts, and what is missing, of each thread."""
    told: dict[int, tuple[Counter[Frames], str]] = {thread.tid: (Counter(), "") for thread in threads}
    if not any(thread.samples for thread in threads):
        return told
    report.doing(f"unwinding the samples of {target.pid}")
    memory = TargetMemory(target.pid, until=give_up, monotonic=host.clock.monotonic)
    ended = {thread.tid: (Counter[Frames](), "it ended before its samples were unwound") for thread in threads}
    try:
        space = AddressSpace(host.proc(target.pid), files, reader(memory.read_many))
        if not space.modules:
            return ended  # not collected by its parent yet
        process = SampledProcess(machine, space, frames=job.caps.frames)
    except procfs.GoneError:
        return ended
    except (procfs.ProcfsError, libdw.LibdwError) as error:
        report.missed(target.pid, str(error))
        return {thread.tid: (Counter(), str(error)) for thread in threads}
    try:
        for thread in threads:
            counts: Counter[Frames] = Counter()
            done = 0
            # Where time runs out, every part of the profile has had its share.
            for sample, python in _spread(thread.samples):
                if host.clock.monotonic() >= give_up:
                    break
                counts[process.frames(sample, python)] += 1
                done += 1
                if not done % HZ:
                    report.doing(f"unwinding the samples of {target.pid}")
            late = len(thread.samples) - done
            told[thread.tid] = (counts, f"{late} samples were not unwound in time" if late else "")
    finally:
        process.close()
    return told


def _spread(samples: Sequence[tuple[Sample, tuple[Frame, ...]]]) -> Iterable[tuple[Sample, tuple[Frame, ...]]]:
    step = max(1, len(samples) // HZ)
    for first in range(step):
        yield from samples[first::step]


def _told(
    thread: _Thread, duration_ms: float, lost: dict[int, int], told: dict[int, tuple[Counter[Frames], str]]
) -> ProfileThread:
    counts, late = told[thread.tid]
    missing = lost.get(thread.tid, 0) + thread.dropped
    doubts = (late, f"{missing} samples were lost" if missing else "")
    waits = [(reason, number / thread.looks) for reason, number in thread.waits.most_common(_WAITS)]
    ready = min(1.0, thread.spent[1] / duration_ms) if duration_ms else 0.0
    if ready >= 0.01:  # noqa: PLR2004 - less is told of nobody
        waits.append(("runnable", ready))
    return ProfileThread(
        pid=thread.pid,
        tid=thread.tid,
        name=thread.name,
        hz=float(HZ),
        duration_ms=duration_ms,
        cpu_ms=thread.spent[0],
        stacks=tuple(ProfileStack(frames=frames, samples=count) for frames, count in counts.most_common(_STACKS)),
        waits=tuple(
            ProfileWait(reason=reason, share=share) for reason, share in sorted(waits, key=lambda wait: -wait[1])
        ),
        doubt="; ".join(filter(None, doubts)),
    )


SAMPLE_STACKS = Collector(
    name="sample_stacks",
    tier=Tier.MEMORY,
    collect=collect,
    patience_ms=_PATIENCE_MS,
    wants=lambda _target: True,
)
