"""What collectors of the memory tier share: looking whether a target's memory can be read, whose its threads are."""

from __future__ import annotations

import os
from contextlib import suppress

from freezeframe.agentd.collectors.contract import Report
from freezeframe.agentd.host import Host, memory, procfs
from freezeframe.agentd.jobs import Target
from freezeframe.judge.model import Process, Snapshot

# How often a stall must be seen, and how far apart, seconds.
_STALL_LOOKS = 3
_STALL_S = 0.02


def may_be_read(target: Target, host: Host, report: Report) -> bool:
    """Whether a target is there and a read of its memory would not wait; why not has been reported."""
    if target.memory_blocked:
        report.missed(target.pid, "its memory was stuck before: left alone")
        return False
    directory = host.proc(target.pid)
    report.doing(f"looking at the threads of {target.pid}")
    try:
        if procfs.stat(directory).start_ticks != target.start_ticks:
            report.missed(target.pid, "the process ended and another one has its pid now")
            return False
        stall = _stall(directory, host)
    except procfs.GoneError:
        report.done(target.pid)  # ended: there is nothing to read any more
        return False
    except procfs.ProcfsError as error:
        report.missed(target.pid, str(error))
        return False
    if stall:
        report.part(Snapshot(processes=(Process(pid=target.pid, memory_blocked=True),)))
        report.missed(target.pid, f"{stall}: left alone")
    return not stall


def _stall(directory: str, host: Host) -> str:
    """What `memory.stall_of` says, if it says so again and again: a busy allocator waits for the lock all the time."""
    stall = ""
    for look in range(_STALL_LOOKS):
        if look:
            host.clock.sleep(_STALL_S)
        stall = memory.stall_of(directory, os.uname().machine)
        if not stall:
            break
    return stall


def host_tids(directory: str) -> dict[int, int] | None:
    """Thread ids of the target's pid namespace, which its memory tells, to the host's; None when they are the same."""
    found: dict[int, int] = {}
    with suppress(procfs.ProcfsError):  # ended: nothing is known
        if len(procfs.status(directory).namespace_pids) <= 1:
            return None
        for tid in procfs.tids(directory):
            with suppress(procfs.ProcfsError):  # a thread that has ended: the others are known
                found[procfs.status(f"{directory}/task/{tid}").namespace_pids[-1]] = tid
    return found
