"""One forked worker: runs one collector of one capture, hands over what it finds, and ends with the process.

It owns nothing but its pipe and its slot, so that it may be killed at any instruction and, stuck beyond SIGKILL, holds
neither port nor lock nor terminal. It is the leader of a process group of its own: helper programs go with it.
"""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import NoReturn

from freezeframe.agentd.collectors.contract import Collector, SkippedError, UnavailableError
from freezeframe.agentd.frames import (
    FRAME_BYTES,
    SLOT_BYTES,
    Done,
    End,
    Frame,
    Missed,
    Part,
    Partial,
    encode,
    write_slot,
)
from freezeframe.agentd.groups import end_with_parent
from freezeframe.agentd.host import Host
from freezeframe.agentd.host.native.warm import warm as warm_native
from freezeframe.agentd.jobs import Job
from freezeframe.judge import model
from freezeframe.judge.model import Outcome, Snapshot
from freezeframe.judge.wire import to_bytes

_PIPE = 3
_SLOT = 4
_RECORDER = 5
_JOB_BYTES = 16 * 1024 * 1024
# A part is split above this size: the front decodes smaller ones without a pause.
_PART_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """What one worker may use."""

    # Private writable memory, bytes (RLIMIT_DATA).
    memory_bytes: int = 1024 * 1024 * 1024
    # The kernel ends a worker before anything else on the host.
    oom_score_adj: int = 500
    # None = that of the agent.
    nice: int | None = None


def warm() -> None:
    """Do once, before the fork, what would cost every worker 3 ms for records and 40 ms for native stacks."""
    warm_native()
    for name in model.__all__:
        kind = getattr(model, name)
        if isinstance(kind, type) and is_dataclass(kind):
            to_bytes(kind())


def run(
    collector: Collector,
    pipe: int,
    slot: int,
    recorder: int | None,
    *,
    host: Host,
    limits: WorkerLimits,
    parent: int,
) -> NoReturn:
    """Be the worker; called in the child right after the fork, never returns.

    `recorder` is a socket to the recorder, for a collector that asks it and while there is one.
    """
    status = 1
    try:
        _isolate(pipe, slot, recorder, limits)
        # The launcher forks from its only thread, so this fires when the launcher ends and never before.
        end_with_parent(parent, signal.SIGTERM if collector.in_gpu_driver else signal.SIGKILL)
        _collect(collector, host if recorder is None else replace(host, recorder=_RECORDER), limits)
        status = 0
    finally:
        # Nothing of the launcher's may run here: no atexit, no buffers, no frames further up.
        os._exit(status)


def _isolate(pipe: int, slot: int, recorder: int | None, limits: WorkerLimits) -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    # A pipe that nobody reads any more ends the worker.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with suppress(OSError):
        os.setpgid(0, 0)
    # Above the low numbers first, since either may be one of them.
    high_pipe, high_slot = (_duplicate_above(fd) for fd in (pipe, slot))
    high_recorder = None if recorder is None else _duplicate_above(recorder)
    null = os.open(os.devnull, os.O_RDWR)
    for low in (0, 1, 2):
        os.dup2(null, low)
    os.dup2(high_pipe, _PIPE, inheritable=False)
    os.dup2(high_slot, _SLOT, inheritable=False)
    last = _SLOT
    if high_recorder is not None:
        last = os.dup2(high_recorder, _RECORDER, inheritable=False)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > last:
            with suppress(OSError):
                os.close(int(name))
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(limits.oom_score_adj))
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (limits.memory_bytes, limits.memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.nice is not None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, limits.nice)


def _duplicate_above(fd: int) -> int:
    # With a floor: dup2 must not overwrite what is still to be moved.
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)


def _collect(collector: Collector, host: Host, limits: WorkerLimits) -> None:
    started = time.monotonic()
    report = _PipeReport()
    status, detail, hint = Outcome.Status.OK, "", ""
    try:
        job = Job.decode(os.pread(_SLOT, _JOB_BYTES, SLOT_BYTES))
        collector.collect(job, host, report)
    except UnavailableError as error:
        status, detail, hint = Outcome.Status.UNAVAILABLE, str(error), error.hint
    except SkippedError as error:
        status, detail = Outcome.Status.SKIPPED, str(error)
    except MemoryError:
        status = Outcome.Status.FAILED
        detail = f"out of memory: the worker's limit is {limits.memory_bytes >> 20} MiB"
    except BaseException as error:  # noqa: BLE001 - the one boundary; what a collector did not foresee is an outcome
        status, detail, hint = Outcome.Status.FAILED, _sentence(error), "please report this"
    duration_ms = (time.monotonic() - started) * 1000
    report.send(End(status=status, detail=detail, hint=hint, duration_ms=duration_ms))


def _sentence(error: BaseException) -> str:
    """Name error, message and the innermost line of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}: {error}"


class _PipeReport:
    """The collector's `Report` over pipe and slot."""

    def __init__(self) -> None:
        self._count = 0

    def doing(self, what: str) -> None:
        self._count += 1
        write_slot(_SLOT, self._count, at_work=True, doing=what.encode("utf-8", "backslashreplace"))

    def part(self, part: Snapshot) -> None:
        for data in split(part):
            if len(data) > FRAME_BYTES:
                self.partial(f"one record of {len(data)} bytes was left out: at most {FRAME_BYTES} are taken")
            else:
                self.send(Part(data=data))

    def done(self, pid: int) -> None:
        self.send(Done(pid=pid))

    def missed(self, pid: int, why: str) -> None:
        self.send(Missed(pid=pid, why=why))

    def partial(self, detail: str, hint: str = "") -> None:
        self.send(Partial(detail=detail, hint=hint))

    def send(self, frame: Frame) -> None:
        self._count += 1
        # A front that reads slowly must not look like a stuck target.
        write_slot(_SLOT, self._count, at_work=False)
        data = memoryview(encode(frame))
        while data:
            data = data[os.write(_PIPE, data) :]


def split(part: Snapshot) -> Iterable[bytes]:
    """Encode a part, in halves of its records as long as it is over 256 KiB and has more than one."""
    data = to_bytes(part)
    lists = {field.name: getattr(part, field.name) for field in fields(part)}
    lists = {name: value for name, value in lists.items() if isinstance(value, tuple) and value}
    if (
        len(data) <= _PART_BYTES
        or sum(map(len, lists.values())) + (part.host is not None) + (part.recorder is not None) <= 1
    ):
        yield data
        return
    singles = dict.fromkeys(("meta", "host", "history", "verdict", "recorder"))
    middle = sum(map(len, lists.values())) // 2
    first: dict[str, object] = {}
    second: dict[str, object] = {}
    for name, value in lists.items():
        first[name], second[name] = value[:middle], value[middle:]
        middle = max(0, middle - len(value))
    yield from split(replace(part, **first))  # type: ignore[arg-type]
    yield from split(replace(part, **singles, **second))  # type: ignore[arg-type]
