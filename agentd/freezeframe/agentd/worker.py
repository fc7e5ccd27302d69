"""One worker: a fork of the launcher that runs one collector over one job and ends.

It may be killed at any instruction; what it wrote to its pipe before is kept.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import traceback

from freezeframe.agentd.collectors.contract import Collector, SkippedError, UnavailableError
from freezeframe.agentd.frames import Kind, pack
from freezeframe.agentd.host import Host
from freezeframe.agentd.jobs import Job
from freezeframe.judge import wire
from freezeframe.judge.model import Outcome, Snapshot

# A worker that grows past this is broken or being attacked; the host needs its memory more.
MEMORY_BYTES = 1024 * 1024 * 1024
_OOM_SCORE = "500"


class PipeReport:
    """Report over a pipe. The front always reads, so a full pipe only ever delays."""

    def __init__(self, descriptor: int) -> None:
        """`descriptor` is the write end, blocking."""
        self._descriptor = descriptor

    def doing(self, what: str) -> None:
        """See Report."""
        self._write(Kind.DOING, what.encode())

    def part(self, part: Snapshot) -> None:
        """See Report."""
        self._write(Kind.PART, wire.to_bytes(part))

    def done(self, pid: int) -> None:
        """See Report."""
        self._write(Kind.DONE, str(pid).encode())

    def missed(self, pid: int, why: str) -> None:
        """See Report."""
        self._write(Kind.MISSED, f"{pid} {why}".encode())

    def partial(self, detail: str, hint: str = "") -> None:
        """See Report."""
        self._write(Kind.PARTIAL, f"{detail}\0{hint}".encode())

    def end(self, status: Outcome.Status, detail: str = "", hint: str = "") -> None:
        """Say how it ended; the last frame."""
        self._write(Kind.END, f"{status.name}\0{detail}\0{hint}".encode())

    def _write(self, kind: Kind, payload: bytes) -> None:
        data = memoryview(pack(kind, payload))
        while data:
            data = data[os.write(self._descriptor, data) :]


def run(collector: Collector, job: Job, host: Host, descriptor: int) -> None:
    """Run in the forked child; the caller exits afterwards. Never raises."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
        stream.write(_OOM_SCORE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    report = PipeReport(descriptor)
    try:
        collector.collect(job, host, report)
    except UnavailableError as error:
        report.end(Outcome.Status.UNAVAILABLE, str(error), error.hint)
    except SkippedError as error:
        report.end(Outcome.Status.SKIPPED, str(error))
    except MemoryError:
        report.end(Outcome.Status.FAILED, f"out of memory: the worker's limit is {MEMORY_BYTES >> 20} MiB")
    except BaseException as error:  # noqa: BLE001 - whatever it is, it must be told
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{os.path.basename(where.filename)}:{where.lineno}"
        report.end(Outcome.Status.FAILED, f"{type(error).__name__} at {place}: {error}", "please report this")
    else:
        report.end(Outcome.Status.OK)
