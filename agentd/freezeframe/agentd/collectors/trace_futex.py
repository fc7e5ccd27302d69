"""trace_futex: threads that wait for a futex, since when, and who woke others at the same address.

Reads /proc/PID/task/TID/syscall for the wait in progress (address, operation, whether it has a timeout) and asks the
recorder when the thread left its CPU, and what went on at each address (eBPF on futex calls and context switches of
processes with connections). A wait that began before the recorder was armed has an age of "at least" the recorder's;
without a recorder waits have no age. Privilege: CAP_SYS_PTRACE; that of the recorder (CAP_BPF, CAP_PERFMON). Cost: one
question, and 10 microseconds per thread. Cannot see: futex_waitv, spinning before a wait, how long a timeout is.

Records hold: FutexWait of the targets; FutexAddress of those with the longest total wait.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from freezeframe.agentd.collectors.contract import Collector, Report, Tier, UnavailableError
from freezeframe.agentd.host import Host, recorder
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import FutexAddress, FutexWait, Snapshot

_TIMEOUT_S = 3.0
_BATCH = 1000
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine, -1)
_OPERATIONS = {0: "wait", 6: "lock_pi", 9: "wait_bitset", 11: "wait_requeue_pi", 13: "lock_pi2"}
_OPERATION_BITS = 127


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
    waited = {tid: max(0.0, (now_ns - off_ns) / 1e6) for tid, off_ns in records["switched_out"]}
    waits: list[FutexWait] = []
    for target in job.targets:
        report.doing(f"reading {host.proc(target.pid, 'task')}")
        for tid in _threads(host, target.pid):
            wait = _wait(host, target.pid, tid)
            if wait is not None:
                since_ms = waited.get(tid, armed_ms)
                waits.append(replace(wait, since_ms=since_ms, at_least=since_ms is not None and tid not in waited))
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


def _wait(host: Host, pid: int, tid: int) -> FutexWait | None:
    """Give the wait that a thread is in; None when it is in none."""
    try:
        with open(host.proc(pid, "task", tid, "syscall"), encoding="ascii") as stream:
            words = stream.read().split()
    except OSError:
        return None
    if words[:1] != [str(_FUTEX)]:
        return None
    operation = int(words[2], 16) & _OPERATION_BITS
    if operation not in _OPERATIONS:
        return None
    return FutexWait(
        pid=pid,
        tid=tid,
        address=f"{int(words[1], 16):x}",
        operation=_OPERATIONS[operation],
        timed=int(words[4], 16) != 0,
    )


TRACE_FUTEX = Collector(
    name="trace_futex",
    tier=Tier.LOCK_FREE,
    collect=collect,
    wants=lambda _target: True,
    asks_recorder=True,
)
