"""trace_futex: threads that wait for a futex, since when, and who woke others at the same address.

Reads /proc/PID/task/TID/syscall for the wait in progress (address, operation, whether it has a timeout) and asks the
recorder when the thread left its CPU, and what went on at each address (eBPF on futex calls and context switches of
processes with connections). A wait that began before the recorder was armed has an age of "at least" the recorder's;
without a recorder waits have no age. Privilege: CAP_SYS_PTRACE; that of the recorder (CAP_BPF, CAP_PERFMON). Cost: one
question, and 10 microseconds per thread. Cannot see: futex_waitv, spinning before a wait; how much of a timeout is left
where the wait began before the recorder was armed, or the kernel does not tell its types (BTF).

Records hold: FutexWait of the targets; FutexAddress of those with the longest total wait.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, NamedTuple

from freezeframe.agentd.collectors.contract import Collector, Report, Tier, UnavailableError
from freezeframe.agentd.host import Host, recorder
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import FutexAddress, FutexWait, Snapshot

_TIMEOUT_S = 3.0
_BATCH = 1000
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine, -1)
_OPERATIONS = {0: "wait", 6: "lock_pi", 9: "wait_bitset", 11: "wait_requeue_pi", 13: "lock_pi2"}
_OPERATION_BITS, _CLOCK_REALTIME = 127, 256
_WAIT, _LOCK_PI = 0, 6


class _Clocks(NamedTuple):
    """One moment, as two clocks tell it."""

    monotonic_ns: int
    real_ns: int


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over waits in progress and busy addresses of the targets."""
    report.doing("asking the recorder")
    timeout_s = max(0.1, min(_TIMEOUT_S, job.deadline_ms / 1000 * 0.5))
    missing: recorder.RecorderError | None = None
    now_ns, armed_ms = 0, None
    records: dict[str, list[list[Any]]] = {"switched_out": [], "addresses": []}
    try:
        answer = recorder.ask(host.recorder, "futexes", timeout_s=timeout_s)
        now_ns, records = answer.state["now_ns"], answer.records
        armed_ms = (now_ns - answer.state["armed_ns"]) / 1e6
    except recorder.RecorderError as error:
        missing = error
    pids = {target.pid for target in job.targets}
    switched_out = {tid: (off_ns, timeout_ns) for tid, off_ns, timeout_ns in records["switched_out"]}
    clocks = _Clocks(monotonic_ns=now_ns, real_ns=int(host.clock.wall() * 1e9))
    waits: list[FutexWait] = []
    for target in job.targets:
        report.doing(f"reading {host.proc(target.pid, 'task')}")
        for tid in _threads(host, target.pid):
            found = _wait(host, target.pid, tid)
            if found is None:
                continue
            wait, operation = found
            if tid in switched_out:
                off_ns, timeout_ns = switched_out[tid]
                left_ms = _left_ms(operation, off_ns, timeout_ns, clocks) if wait.timed and timeout_ns else None
                since_ms = max(0.0, (now_ns - off_ns) / 1e6)
                waits.append(replace(wait, since_ms=since_ms, timeout_left_ms=left_ms))
            else:
                waits.append(replace(wait, since_ms=armed_ms, at_least=armed_ms is not None))
        report.done(target.pid)
    waiters: dict[tuple[int, str], int] = {}
    for each in waits:
        waiters[each.pid, each.address] = waiters.get((each.pid, each.address), 0) + 1
    addresses = tuple(_address(each, now_ns, waiters) for each in records["addresses"] if each[0] in pids)
    for start in range(0, len(waits), _BATCH):
        report.part(Snapshot(futex_waits=tuple(waits[start : start + _BATCH])))
    report.part(Snapshot(futex_addresses=addresses))
    if missing is not None:
        raise UnavailableError(f"{missing}: only which threads wait now is known", missing.hint) from missing


def _address(record: list[Any], now_ns: int, waiters: dict[tuple[int, str], int]) -> FutexAddress:
    pid, number, waits, wait_ns, wakes, _woken, last_wake_ns, wakers = record
    address = f"{number:x}"
    return FutexAddress(
        pid=pid,
        address=address,
        waits=float(waits),
        wait_ms=wait_ns / 1e6,
        waiters=waiters.get((pid, address), 0),
        wakes=float(wakes),
        last_wake_age_ms=max(0.0, (now_ns - last_wake_ns) / 1e6) if last_wake_ns else None,
        wakers=tuple(wakers),
    )


def _threads(host: Host, pid: int) -> list[int]:
    try:
        return [int(name) for name in os.listdir(host.proc(pid, "task"))]
    except OSError:
        return []


def _left_ms(operation: int, off_ns: int, timeout_ns: int, clocks: _Clocks) -> float:
    """Time until a wait ends by itself; `timeout_ns` is what futex(2) was given: a time or, by operation, a moment."""
    what = operation & _OPERATION_BITS
    if what == _WAIT:
        left_ns = off_ns + timeout_ns - clocks.monotonic_ns
    elif what == _LOCK_PI or operation & _CLOCK_REALTIME:
        left_ns = timeout_ns - clocks.real_ns
    else:
        left_ns = timeout_ns - clocks.monotonic_ns
    return max(0.0, left_ns / 1e6)


def _wait(host: Host, pid: int, tid: int) -> tuple[FutexWait, int] | None:
    """Give the wait that a thread is in, and its operation with all bits; None when it is in none."""
    try:
        with open(host.proc(pid, "task", tid, "syscall"), encoding="ascii") as stream:
            words = stream.read().split()
    except OSError:
        return None
    if words[:1] != [str(_FUTEX)]:
        return None
    operation = int(words[2], 16)
    name = _OPERATIONS.get(operation & _OPERATION_BITS)
    if name is None:
        return None
    address, timed = f"{int(words[1], 16):x}", int(words[4], 16) != 0
    return FutexWait(pid=pid, tid=tid, address=address, operation=name, timed=timed), operation


TRACE_FUTEX = Collector(
    name="trace_futex",
    tier=Tier.LOCK_FREE,
    collect=collect,
    wants=lambda _target: True,
    asks_recorder=True,
)
