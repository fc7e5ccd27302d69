"""find_processes: every process of the host, in few words. The first step of every capture, never shown by itself.

Reads: /proc/PID/{stat,status,cgroup,exe,ns/net}; nothing that a stuck process can block, no command line. Kernel
threads are left out. Privilege: none for one's own processes; CAP_SYS_PTRACE for exe and network namespace of others.
Cost: about 50 microseconds per process. Cannot see: titles (a read of memory), a Python inside another program.

Records hold: pid, parent_pid, start_ticks, age_ms, comm, exe, state, uid, container_pid, tracer_pid, cpu_ms, rss_bytes,
thread_count, cgroup, unit, container, netns, python, runtime.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TypeVar

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.host import Host, cgroups, procfs
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import Process, Snapshot

_T = TypeVar("_T")

# Records handed over at once: few enough that a kill loses little, many enough that handing over costs little.
_BATCH = 256
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PYTHON = re.compile(r"/python(3\.\d+)[a-z]*(?: \(deleted\))?$")
# Runtime by the program's name, where the name leaves no doubt.
_RUNTIMES = {
    "node": "node",
    "nodejs": "node",
    "smg": "rust",
    "amg": "rust",
    "sgl-model-gateway": "rust",
    "sgl-router": "rust",
    "vllm-router": "rust",
    "caddy": "go",
    "traefik": "go",
    "ollama": "go",
}


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over one record per process; `job` asks for nothing more."""
    del job
    report.doing(f"listing {host.proc()}")
    now_ms = host.clock.boottime() * 1000.0
    found: list[Process] = []
    denied = 0
    for pid in procfs.pids(host.proc()):
        try:
            process = read_process(host.proc(pid), now_ms)
        except procfs.GoneError:
            continue
        except procfs.ProcfsError as error:
            report.missed(pid, str(error))
            continue
        if process is None:
            continue
        # Some hosts close init even to root: that hides nothing of serving.
        denied += not process.netns and pid != 1 and _lives(host.proc(pid))
        found.append(process)
        if len(found) == _BATCH:
            report.part(Snapshot(processes=tuple(found)))
            found = []
    report.part(Snapshot(processes=tuple(found)))
    if denied:
        report.partial(
            f"executable and network namespace of {denied} processes are hidden from this user",
            "run the agent as root or grant CAP_SYS_PTRACE",
        )


def _lives(directory: str) -> bool:
    """Whether a process has not ended meanwhile: a zombie has neither executable nor namespace."""
    try:
        return procfs.stat(directory).state not in ("Z", "X")
    except procfs.ProcfsError:
        return False


def read_process(directory: str, now_ms: float) -> Process | None:
    """Read one process; None for a kernel thread. Raises ProcfsError when `stat` cannot be read."""
    stat = procfs.stat(directory)
    if stat.kernel_thread:
        return None
    status = _or_none(procfs.status, directory)
    namespace_pids = status.namespace_pids if status else ()
    cgroup = cgroups.parse_cgroup(_or_none(procfs.cgroup, directory) or b"")
    exe = _or_none(procfs.exe, directory) or ""
    python = python_version(exe)
    return Process(
        pid=stat.pid,
        parent_pid=stat.parent_pid,
        start_ticks=stat.start_ticks,
        age_ms=max(0.0, now_ms - stat.start_ticks * 1000.0 / _TICKS_PER_SECOND),
        comm=stat.comm,
        exe=exe,
        state=stat.state,
        uid=status.uid if status else 0,
        container_pid=namespace_pids[-1] if len(namespace_pids) > 1 else None,
        tracer_pid=status.tracer_pid if status else 0,
        cpu_ms=stat.cpu_ms,
        rss_bytes=stat.rss_bytes,
        thread_count=stat.thread_count,
        cgroup=cgroup.path,
        unit=cgroup.unit,
        container=cgroup.container,
        netns=_or_none(procfs.network_namespace, directory) or 0,
        python=python,
        runtime="python" if python else _RUNTIMES.get(exe.removesuffix(" (deleted)").rpartition("/")[2], ""),
    )


def python_version(exe: str) -> str:
    """Version of CPython by the interpreter's resolved path: "/usr/bin/python3.11" is "3.11"; "" when it is none."""
    found = _PYTHON.search(exe)
    return found[1] if found else ""


def _or_none(read: Callable[[str], _T], directory: str) -> _T | None:
    try:
        return read(directory)
    except procfs.ProcfsError:
        return None


FIND_PROCESSES = Collector(name="find_processes", tier=Tier.LOCK_FREE, collect=collect, wants=None)
