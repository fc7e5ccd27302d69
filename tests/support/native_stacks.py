"""Programs of known waits, and what snapshot_native_stacks says of their threads."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from freezeframe.agentd.collectors.snapshot_native_stacks import SNAPSHOT_NATIVE_STACKS
from freezeframe.agentd.host import procfs
from freezeframe.judge.model import NativeThread
from tests.support import report
from tests.support.children import child
from tests.support.compiled import c_program
from tests.support.reports import KeptReport

# wait: the frames above run, middle included, innermost first, without those of libc.
OF_THE_PROGRAM = {
    "mutex": ["wait_mutex"],
    "cond": ["wait_cond"],
    "sem": ["wait_sem"],
    "read": ["wait_read"],
    "sleep": ["wait_sleep"],
    "recurse": ["wait_recurse"] * 21,
    "vfork": ["wait_vfork"],
    "alarm": ["on_signal", "wait_alarm"],
}


@contextlib.contextmanager
def waits(*what: str, command: str = "", **options: object) -> Iterator[tuple[int, dict[str, int]]]:
    """The C program, with its pid and the tid of each wait."""
    with child(command or c_program("waits"), *what, ready=False, **options) as process:
        line = process.stdout.readline().split()
        assert line[:1] == [b"ready"]
        tids = [int(number) for number in line[1:]]
        resting(process.pid, [process.pid, *(tids if not {"spin", "churn"} & set(what) else [])])
        yield process.pid, dict(zip(what, tids, strict=True))


def resting(pid: int, tids: list[int]) -> None:
    """Wait until threads sleep where they are to stay."""

    def rests(tid: int) -> bool:
        thread = f"/proc/{pid}/task/{tid}"
        call = procfs.syscall(thread, os.uname().machine)
        return procfs.stat(thread).state in "SDT" and call.name not in {"write", "running", "munmap", "mprotect"}

    for tid in tids:
        report.until(lambda tid=tid: rests(tid))


def stacks_of(pid: int, **options: object) -> tuple[dict[int, NativeThread], KeptReport]:
    kept = report.run(SNAPSHOT_NATIVE_STACKS, [report.target(pid)], **options)
    return {thread.tid: thread for thread in kept.gathered.records("native_threads")}, kept


def functions(thread: NativeThread, module: str) -> list[str]:
    return [frame.function for frame in thread.frames if frame.module.startswith(module)]
