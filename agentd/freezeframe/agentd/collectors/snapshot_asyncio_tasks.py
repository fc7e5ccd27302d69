"""snapshot_asyncio_tasks: asyncio tasks of Python processes with their await chains, at two looks.

Reads: the target's memory (process_vm_readv), /proc/PID/maps, /proc/PID/fd; of 3.14 the section headers of _asyncio.
Pause of the target: 0 (no ptrace, no signal). Privilege: CAP_SYS_PTRACE. Cost: 3 ms, and 50 microseconds of CPU per
task and look. Which: CPython 3.10 to 3.14 on x86-64, asyncio and uvloop, every loop of the main interpreter.

Of a task: its chain, what it awaits and which tasks it waits for, the thread of its loop, and where they are found in
the locals of its chain, the descriptor of the connection, peer, method, path (without query) and request id of the HTTP
request that it serves: uvicorn and other ASGI servers, aiohttp's, servers of asyncio streams. No header or body else.

Cannot see: tasks of other libraries (trio, gevent, grpc's C core), what runs inside a Cython coroutine, when a task was
created, builds without the interpreter lock. A version or layout that is not known is named, never guessed. A chain
that changed while it was read is read again, and told with a doubt when it never held still.

A target whose memory was stuck, or is by the look of its threads, is left alone and named.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.collectors.readable import host_tids, may_be_read
from freezeframe.agentd.host import Host
from freezeframe.agentd.host.cpython.frames import short_path
from freezeframe.agentd.host.cpython.interpreter import Interpreter, NotPythonError, UnsupportedPythonError, attach
from freezeframe.agentd.host.cpython.locks import TaskLocks
from freezeframe.agentd.host.cpython.look import Look, look
from freezeframe.agentd.host.cpython.serving import Served
from freezeframe.agentd.host.cpython.task_set import NoAsyncioError
from freezeframe.agentd.host.descriptors import sockets_of
from freezeframe.agentd.host.target_memory import TargetMemory, TargetMemoryError
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import AsyncioTask, Frame, Process, Snapshot, TaskEdge

# Share of the job's time for one target: both looks and the window must fit. And after which no look is begun.
_LIMIT_SHARE = 0.35
_END_SHARE = 0.8
# A target that gives no byte for so long holds up the others: its memory lock is held.
_PATIENCE_MS = 1000.0
# Bytes read of one target at one look; 10,000 tasks are 40 MiB.
_MAX_BYTES = 512 * 1024 * 1024

Role = Process.Role
_ROLES = frozenset(Role) - {Role.OTHER, Role.UNSPECIFIED}


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over AsyncioTask records: the first look at once, whole records again after the window."""
    begin = host.clock.monotonic()
    first: dict[int, tuple[AsyncioTask, ...]] = {}
    # What the first look found serves the second.
    attached: dict[int, Interpreter] = {}
    for target in job.targets:
        if not may_be_read(target, host, report):
            continue
        tasks = _look(target, job, host, report, attached)
        if tasks is None:
            continue
        report.part(Snapshot(asyncio_tasks=tasks))
        if job.window_ms and tasks:
            first[target.pid] = tasks
        else:
            report.done(target.pid)
    if first:
        report.doing("waiting for the second look")
        host.clock.sleep(max(0.0, begin + job.window_ms / 1000.0 - host.clock.monotonic()))
        end = begin + job.deadline_ms / 1000.0 * _END_SHARE
        again = [target for target in job.targets if target.pid in first]
        _look_again(again, first, job, host, report, attached, end)


def _look_again(
    targets: Sequence[Target],
    first: Mapping[int, Sequence[AsyncioTask]],
    job: Job,
    host: Host,
    report: Report,
    attached: dict[int, Interpreter],
    end: float,
) -> None:
    for target in targets:
        if host.clock.monotonic() > end:
            report.missed(target.pid, "no time was left for a second look")
            continue
        if not may_be_read(target, host, report):
            continue
        tasks = _look(target, job, host, report, attached)
        if tasks is not None:
            report.part(Snapshot(asyncio_tasks=_compared(first[target.pid], tasks)))
            report.done(target.pid)


def _look(
    target: Target, job: Job, host: Host, report: Report, attached: dict[int, Interpreter]
) -> tuple[AsyncioTask, ...] | None:
    """Tasks of one target; None when it was reported as missed."""

    def beat() -> None:
        report.doing(f"reading the memory of {target.pid}")

    beat()
    memory = TargetMemory(
        target.pid,
        max_bytes=_MAX_BYTES,
        until=host.clock.monotonic() + job.deadline_ms / 1000.0 * _LIMIT_SHARE,
        monotonic=host.clock.monotonic,
        beat=beat,
    )
    directory = host.proc(target.pid)
    try:
        return _read(target, memory, directory, job, report, attached)
    except NoAsyncioError:
        return ()
    except NotPythonError as error:
        if not target.python:
            return ()
        report.missed(target.pid, f"it runs Python {target.python}, and {error}")
    except (UnsupportedPythonError, TargetMemoryError) as error:
        report.missed(target.pid, str(error))
    except OSError as error:
        if os.path.isdir(directory):
            report.missed(target.pid, f"reading {error.filename}: {error.strerror}")
        else:
            report.done(target.pid)
    return None


def _read(
    target: Target,
    memory: TargetMemory,
    directory: str,
    job: Job,
    report: Report,
    attached: dict[int, Interpreter],
) -> tuple[AsyncioTask, ...]:
    machine, tids = os.uname().machine, host_tids(directory)
    interpreter = attached[target.pid] = attach(directory, memory, machine, attached.get(target.pid))
    found = look(interpreter, directory, machine, tids, limit=job.caps.tasks)
    if found.total > job.caps.tasks:
        report.missed(target.pid, f"it has {found.total} tasks, of which {job.caps.tasks} were read")
    if interpreter.others:
        report.missed(target.pid, f"it has {interpreter.others} more interpreters, whose tasks were not read")
    return _tasks(target.pid, found, job.caps.frames, tids, _sockets(directory))


def _sockets(directory: str) -> frozenset[int]:
    """Descriptors that are sockets: what a transport has otherwise is none."""
    try:
        return frozenset(sockets_of(directory).values())
    except OSError:
        return frozenset()


def _tasks(
    pid: int, found: Look, frames: int, tids: Mapping[int, int] | None, sockets: frozenset[int]
) -> tuple[AsyncioTask, ...]:
    parents = {child: parent for parent, children in found.edges.items() for child, _ in children}
    nothing, no_locks = Served(), TaskLocks()
    records = []
    for task in found.tasks:
        served = found.served.get(task.address, nothing)
        locks = found.locks.get(task.address, no_locks)
        thread = found.loops.get(task.loop)
        native = thread.native if thread is not None else 0
        records.append(
            AsyncioTask(
                pid=pid,
                name=task.name,
                state=task.state,
                frames=tuple(
                    Frame(function=each.place.function, file=short_path(each.place.file), line=each.place.line)
                    for each in task.frames[:frames]
                ),
                awaits=task.awaits,
                awaits_address=_address(task.awaited),
                awaits_state=task.awaited_state,
                address=_address(task.address),
                awaited_by=_address(parents.get(task.address, 0)),
                waits_for=tuple(
                    TaskEdge(address=_address(child), kind=kind) for child, kind in found.edges.get(task.address, ())
                ),
                coroutine=_address(task.coroutine),
                loop=_address(task.loop),
                tid=native if tids is None else tids.get(native, 0),
                fd=served.fd if served.fd in sockets else None,
                peer_address=served.peer,
                method=served.method,
                path=served.path,
                request_id=served.request_id,
                engine_request_id=served.engine_request_id,
                doubt=task.doubt,
                waits_for_lock=_address(locks.waits_for),
                holds_locks=tuple(_address(each) for each in locks.holds),
                waits_with_timeout=locks.timed,
            )
        )
    return tuple(records)


def _address(value: int) -> str:
    return f"{value:#x}" if value else ""


def _compared(first: Sequence[AsyncioTask], second: Sequence[AsyncioTask]) -> tuple[AsyncioTask, ...]:
    """Records of the first look with what the second shows; a task that has ended is there at neither."""
    now = {(task.address, task.coroutine): task for task in second}
    compared = []
    for was in first:
        task = now.get((was.address, was.coroutine))
        if task is None:
            compared.append(replace(was, same_at_second_look=False))
            continue
        same = task.frames == was.frames and task.awaits_address == was.awaits_address
        compared.append(replace(was, same_at_second_look=same, frames_after=() if same else task.frames))
    return tuple(compared)


def _wants(target: Target) -> bool:
    return bool(target.python) and target.role in _ROLES


SNAPSHOT_ASYNCIO_TASKS = Collector(
    name="snapshot_asyncio_tasks", tier=Tier.MEMORY, collect=collect, wants=_wants, patience_ms=_PATIENCE_MS
)
