"""snapshot_python_stacks: the Python threads of engines, Python clients, proxies and routers, at two looks.

Two readers: our own walker over the target's memory (process_vm_readv; CPython 3.10 to 3.14), which knows when a thread
ran while it was read, the interpreter lock's holder and who waits for it; and `py-spy dump --json --nonblocking` of the
wheel in this environment, one process per target, as many at once as there are CPUs, each under its own time limit.
py-spy costs ten times as much: it checks the first of two looks, and reads what our walker cannot. Where they differ
over a thread that stood still, its stack is told with a doubt. Pause of the target: 0 (no ptrace, no signal).
Privilege: CAP_SYS_PTRACE. Cost: 3 ms of CPU per target and look, 40 ms with py-spy. Cannot see: suspended coroutines,
native frames; locals are never asked for.

A target whose memory was stuck, or is by the look of its threads, is left alone and named.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.collectors.readable import host_tids, may_be_read
from freezeframe.agentd.cross_check import merged, same_stack
from freezeframe.agentd.host import Host, procfs, py_spy
from freezeframe.agentd.host.cpython.interpreter import NotPythonError, UnsupportedPythonError, attach
from freezeframe.agentd.host.cpython.stacks import WalkedThread, activity, walk_threads
from freezeframe.agentd.host.target_memory import TargetMemory, TargetMemoryError
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import Process, PythonThread, Snapshot

_INSTALL = "pip install 'freezeframe[agent]'"
# Longest wait for one target, seconds, and as a share of the job's time: both looks and the window must fit.
_LIMIT_S = 2.0
_LIMIT_SHARE = 0.35
# The same for our own walk, which goes from one target to the next, and for all of them together at one look.
_WALK_S = 0.5
_WALK_SHARE = 0.1
_WALKS_SHARE = 0.25
_WALK_BYTES = 256 * 1024 * 1024
# A target that gives no byte for so long holds up the others: its memory lock is held.
_PATIENCE_MS = 1000.0

Role = Process.Role
# Their program is Python whatever it is called.
_PARTS = frozenset({Role.SCHEDULER, Role.DETOKENIZER, Role.DP_CONTROLLER, Role.TOKENIZER_WORKER, Role.WORKER})
_ROLES = _PARTS | {Role.ENGINE_HTTP, Role.ROUTER, Role.PROXY, Role.CLIENT}


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over PythonThread records: the first look at once, whole records again after the window."""
    program: str | None = None
    try:
        program = py_spy.locate()
    except py_spy.MissingError as error:
        report.partial(f"{error}: stacks are our own walker's alone", _INSTALL)
    begin = host.clock.monotonic()
    targets = [target for target in job.targets if may_be_read(target, host, report)]
    first: dict[int, tuple[PythonThread, ...]] = {}
    cpu_ms: dict[int, dict[int, float]] = {}
    for target, threads in _look(program, targets, job, host, report, early=True):
        first[target.pid] = threads
        cpu_ms[target.pid] = _cpu_ms(host, target.pid, threads)
        report.part(Snapshot(python_threads=threads))
        if not job.window_ms:
            report.done(target.pid)
    if not job.window_ms:
        return
    report.doing("waiting for the second look")
    host.clock.sleep(max(0.0, begin + job.window_ms / 1000.0 - host.clock.monotonic()))
    again = [target for target in targets if target.pid in first]
    for target, threads in _look(program, again, job, host, report, early=False):
        after = _cpu_ms(host, target.pid, threads)
        compared = tuple(_with_cpu(_compare(was, threads), cpu_ms[target.pid], after) for was in first[target.pid])
        report.part(Snapshot(python_threads=compared))
        report.done(target.pid)


def _look(
    program: str | None, targets: Sequence[Target], job: Job, host: Host, report: Report, *, early: bool
) -> Iterator[tuple[Target, tuple[PythonThread, ...]]]:
    """One look: every target by our own walker, then, where it checks or helps, by py-spy."""
    checked = early and job.window_ms > 0 and program is not None
    walked = _walk_all(targets, job, host, report, early=checked)
    by_pid = {}
    for target in targets:
        threads, why = walked[target.pid]
        if program is not None and (checked or (not threads and why)):
            by_pid[target.pid] = target
        elif threads:
            yield target, merged(target.pid, threads, (), lambda _thread: True)
        else:
            _tell_missing(target, why, report)
    if program is None or not by_pid:
        return
    answers = py_spy.dump_all(
        program,
        list(by_pid),
        limit_s=min(_LIMIT_S, job.deadline_ms / 1000.0 * _LIMIT_SHARE),
        at_once=len(os.sched_getaffinity(0)),
        working_on=lambda pids: report.doing(f"running py-spy on {', '.join(map(str, pids))}"),
    )
    for answer in answers:
        target = by_pid[answer.pid]
        threads, _ = walked[answer.pid]
        spied, why = _spied(answer, target, job, host)
        if threads or spied is not None:
            yield target, merged(target.pid, threads, spied or (), partial(_still, host, target.pid))
        else:
            _tell_missing(target, why, report)


def _spied(answer: py_spy.Answer, target: Target, job: Job, host: Host) -> tuple[tuple[PythonThread, ...] | None, str]:
    """Threads by py-spy; None, and why, or "" where there is no Python to be read."""
    if answer.status == 0:
        try:
            return _read(answer, job, host), ""
        except ValueError as error:
            return None, str(error)
    why = py_spy.why_failed(answer)
    if not why and target.python:
        why = f"py-spy finds no Python in it, though it runs Python {target.python}"
    return None, why


def _tell_missing(target: Target, why: str, report: Report) -> None:
    if why:
        report.missed(target.pid, why)
    else:
        report.done(target.pid)


def _walk_all(
    targets: Sequence[Target], job: Job, host: Host, report: Report, *, early: bool
) -> dict[int, tuple[tuple[WalkedThread, ...], str]]:
    until = host.clock.monotonic() + job.deadline_ms / 1000.0 * _WALKS_SHARE
    walked = {}
    for target in targets:
        threads, _ = walked[target.pid] = _walk(target, job, host, report, until)
        if early and threads:
            # What is here should py-spy take too long.
            report.part(Snapshot(python_threads=merged(target.pid, threads, (), lambda _thread: True)))
    return walked


def _walk(target: Target, job: Job, host: Host, report: Report, until: float) -> tuple[tuple[WalkedThread, ...], str]:
    """Threads by our own walker, or why there are none."""

    def beat() -> None:
        report.doing(f"reading the memory of {target.pid}")

    directory = host.proc(target.pid)
    limit_s = min(_WALK_S, job.deadline_ms / 1000.0 * _WALK_SHARE)
    memory = TargetMemory(
        target.pid,
        max_bytes=_WALK_BYTES,
        until=min(until, host.clock.monotonic() + limit_s),
        monotonic=host.clock.monotonic,
        beat=beat,
    )
    machine = os.uname().machine
    try:
        return walk_threads(
            attach(directory, memory, machine),
            directory,
            machine,
            host_tids(directory),
            frames=job.caps.frames,
            threads=job.caps.threads,
        ), ""
    except NotPythonError:
        return (), f"it runs Python {target.python}, of which nothing is found in it" if target.python else ""
    except (UnsupportedPythonError, TargetMemoryError) as error:
        return (), str(error)
    except OSError as error:
        return (), "" if not os.path.isdir(directory) else f"reading {error.filename}: {error.strerror}"


def _still(host: Host, pid: int, thread: WalkedThread) -> bool:
    """Whether a thread has not run since it was walked."""
    now = activity(host.proc(pid, "task", thread.tid), os.uname().machine)
    return now is not None and not now.running and now.switches == thread.switches


def _read(answer: py_spy.Answer, job: Job, host: Host) -> tuple[PythonThread, ...]:
    tids = host_tids(host.proc(answer.pid))
    threads = py_spy.parse(
        answer.stdout,
        pid=answer.pid,
        frames=job.caps.frames,
        host_tids=lambda tid: tid if tids is None else tids.get(tid, 0),
    )
    if tids is None:
        return threads
    # py-spy looks up the state of a thread by the number that the target's namespace gives it: of some other thread.
    return tuple(replace(thread, active=_runs(host, thread)) for thread in threads)


def _runs(host: Host, thread: PythonThread) -> bool:
    try:
        return thread.owns_gil or procfs.stat(host.proc(thread.pid, "task", thread.tid)).state == "R"
    except procfs.ProcfsError:
        return thread.owns_gil


def _compare(was: PythonThread, threads: Iterable[PythonThread]) -> PythonThread:
    now = next((each for each in threads if (each.tid, each.name) == (was.tid, was.name)), None)
    if now is None:
        return replace(was, same_at_second_look=False)
    same = same_stack(now.frames, was.frames)
    return replace(was, same_at_second_look=same, frames_after=() if same else now.frames)


def _with_cpu(thread: PythonThread, before: dict[int, float], after: dict[int, float]) -> PythonThread:
    if thread.tid not in before or thread.tid not in after:
        return thread
    return replace(thread, cpu_ms_delta=max(0.0, after[thread.tid] - before[thread.tid]))


def _cpu_ms(host: Host, pid: int, threads: Iterable[PythonThread]) -> dict[int, float]:
    found = {}
    for thread in threads:
        try:
            found[thread.tid] = procfs.stat(host.proc(pid, "task", thread.tid)).cpu_ms
        except procfs.ProcfsError:
            continue  # ended, or its id is not known
    return found


def _wants(target: Target) -> bool:
    return target.role in _PARTS or (bool(target.python) and target.role in _ROLES)


SNAPSHOT_PYTHON_STACKS = Collector(
    name="snapshot_python_stacks", tier=Tier.MEMORY, collect=collect, wants=_wants, patience_ms=_PATIENCE_MS
)
