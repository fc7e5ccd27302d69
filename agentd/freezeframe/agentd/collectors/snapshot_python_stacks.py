"""snapshot_python_stacks: the Python threads of engines, Python clients and Python routers, at two looks.

Runs: `py-spy dump --json --nonblocking` of the wheel beside this interpreter (never one from PATH), one process per
target, as many at once as there are CPUs, each under its own time limit. Non-blocking: no ptrace, nothing is stopped;
a stack may be torn while its thread runs. Privilege: CAP_SYS_PTRACE. Cost: 15 to 50 ms of CPU per target and look.
Cannot see: suspended coroutines, native frames, locals (never asked for).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from freezeframe.agentd.collectors.contract import Collector, Report, Tier, UnavailableError
from freezeframe.agentd.host import Host, procfs
from freezeframe.agentd.host.text import escape
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import Frame, Process, PythonThread, Snapshot

_INSTALL = "pip install 'freezeframe[agent]'"
_LIMIT_S = 2.0
_OUTPUT_BYTES = 16 * 1024 * 1024
_ROLES = frozenset(Process.Role) - {Process.Role.OTHER, Process.Role.UNSPECIFIED}


def py_spy() -> str:
    """Path of the py-spy that came with this environment. Raises UnavailableError."""
    path = os.path.join(os.path.dirname(os.path.abspath(sys.executable)), "py-spy")
    if not os.access(path, os.X_OK):
        raise UnavailableError(f"py-spy is not beside {sys.executable}", _INSTALL)
    return path


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over PythonThread records: the first look at once, whole records again after the window."""
    program = py_spy()
    targets = [target for target in job.targets if not target.memory_blocked]
    for target in job.targets:
        if target.memory_blocked:
            report.missed(target.pid, "its memory is stuck: not read")
    first = {}
    for target, threads in _dump_all(program, targets, job, host, report):
        first[target.pid] = threads
        report.part(Snapshot(python_threads=tuple(threads)))
        if not job.window_ms:
            report.done(target.pid)
    if not job.window_ms:
        return
    report.doing(f"waiting {job.window_ms:.0f} ms for the second look")
    host.clock.sleep(job.window_ms / 1000.0)
    again = [target for target in targets if target.pid in first]
    for target, threads in _dump_all(program, again, job, host, report):
        now = {(thread.tid, thread.name): thread for thread in threads}
        report.part(
            Snapshot(python_threads=tuple(_compare(was, now.get((was.tid, was.name))) for was in first[target.pid]))
        )
        report.done(target.pid)


def _compare(was: PythonThread, now: PythonThread | None) -> PythonThread:
    if now is None:
        return replace(was, same_at_second_look=False)
    same = now.frames == was.frames
    return replace(was, same_at_second_look=same, frames_after=() if same else now.frames)


def _dump_all(
    program: str, targets: list[Target], job: Job, host: Host, report: Report
) -> Iterator[tuple[Target, list[PythonThread]]]:
    """Dump several at once; whoever is done is handed on in the order of starting."""
    waiting = list(targets)
    running: list[tuple[Target, subprocess.Popen[bytes], float]] = []
    while waiting or running:
        while waiting and len(running) < max(2, os.cpu_count() or 1):
            target = waiting.pop(0)
            report.doing(f"running py-spy on pid {target.pid}")
            process = subprocess.Popen(
                [program, "dump", "--json", "--nonblocking", "--pid", str(target.pid)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={"PATH": "/usr/bin:/bin", "RUST_BACKTRACE": "0"},
            )
            running.append((target, process, time.monotonic()))
        target, process, begin = running.pop(0)
        try:
            out, err = process.communicate(timeout=max(0.05, _LIMIT_S - (time.monotonic() - begin)))
        except subprocess.TimeoutExpired:
            # Stuck in a read of the target: killed, not waited for.
            process.kill()
            report.missed(target.pid, f"py-spy gave no answer in {_LIMIT_S:.0f} s")
            continue
        if process.returncode != 0:
            why = _reason(err)
            if why:
                report.missed(target.pid, why)
            else:
                report.done(target.pid)
            continue
        try:
            yield target, parse(out[:_OUTPUT_BYTES], target.pid, job.caps.frames, _host_tids(host, target.pid))
        except ValueError as error:
            report.missed(target.pid, f"reading py-spy's answer: {error}")


def _reason(stderr: bytes) -> str:
    """Why py-spy failed, one line; empty when the target is simply no Python."""
    text = stderr.decode("utf-8", "backslashreplace")
    if "Failed to find python version" in text or "Failed to find a python" in text:
        return ""
    if "ermission" in text:
        return "py-spy may not read it: run the agent as root or grant CAP_SYS_PTRACE"
    if "process executable name" in text or "No such process" in text:
        return "it has ended"
    return f"py-spy failed: {escape(stderr.splitlines()[0] if stderr.splitlines() else b'', 200)}"


def parse(data: bytes, pid: int, frames: int, host_tids: dict[int, int]) -> list[PythonThread]:
    """Parse `py-spy dump --json`. Raises ValueError."""
    try:
        dumped: list[dict[str, Any]] = json.loads(data)
        return [
            PythonThread(
                pid=pid,
                tid=host_tids.get(each.get("os_thread_id") or 0, each.get("os_thread_id") or 0),
                name=_text(each.get("thread_name") or ""),
                frames=tuple(
                    Frame(
                        function=_text(frame["name"]),
                        file=_text(frame.get("short_filename") or frame["filename"]),
                        line=frame["line"],
                    )
                    for frame in each["frames"][:frames]
                ),
                active=bool(each.get("active")),
                owns_gil=bool(each.get("owns_gil")),
            )
            for each in dumped
        ]
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"{error!r} in {len(data)} bytes") from error


def _text(value: str) -> str:
    return escape(value.encode("utf-8", "backslashreplace"), 500)


def _host_tids(host: Host, pid: int) -> dict[int, int]:
    """Thread ids inside the target's pid namespace -> the host's; py-spy tells the former."""
    directory = host.proc(pid)
    found = {}
    try:
        if len(procfs.status(directory).namespace_pids) < 2:  # noqa: PLR2004 - host's and one more
            return {}
        for tid in procfs.tids(directory):
            inner = procfs.status(f"{directory}/task/{tid}").namespace_pids
            found[inner[-1]] = tid
    except (procfs.ProcfsError, IndexError):
        return found
    return found


def _wants(target: Target) -> bool:
    return bool(target.python) and target.role in _ROLES


SNAPSHOT_PYTHON_STACKS = Collector(name="snapshot_python_stacks", tier=Tier.MEMORY, collect=collect, wants=_wants)
