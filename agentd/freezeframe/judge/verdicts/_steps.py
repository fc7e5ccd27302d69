"""What to do next: commands that can be pasted on the host of the snapshot, and the names of known kinds of issues.

A step is "COMMAND  # WHY", so that it can be pasted as it stands, or "Known kind: NAME". FILE in a command is the
snapshot's file; the client puts its name there. No command changes anything unless its comment says so.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.model import LogSource

_LINES = 200


def step(command: str, why: str) -> str:
    """Give a command and what it is for."""
    return f"{command}  # {why}"


def known(kind: str) -> str:
    """Name the kind of a known issue, as field reports call it."""
    return f"Known kind: {kind}"


def _on(facts: Facts, pid: int, why: str) -> str:
    """What a command is for, and of several hosts on which."""
    place = facts.place(pid).name
    return f"on {place}: {why}" if place else why


def stacks(facts: Facts, pid: int, why: str) -> str:
    """Look at the stacks of a process: py-spy knows Python, freezeframe the rest."""
    why = _on(facts, pid, why)
    process = facts.processes.get(pid)
    if process is not None and not process.python:
        return step(f"freezeframe snap -p {pid} -o now.ffz; freezeframe show now.ffz native", why)
    return step(f"py-spy dump --pid {pid} --nonblocking", why)


def log(facts: Facts, pid: int, why: str, *, pattern: str = "") -> str:
    """Read the end of a process's log, where it is known to go."""
    found = f" | grep -E {shlex.quote(pattern)}" if pattern else ""
    return step(f"{_read(facts, pid)}{found}", _on(facts, pid, why))


def ask(facts: Facts, pid: int, path: str, why: str, *, pattern: str = "") -> str:
    """Ask one of its endpoints."""
    found = f" | grep -E {shlex.quote(pattern)}" if pattern else ""
    address = next((item.address for item in facts.listeners if item.pid == pid), "")
    if not address:
        return step(f"ss -tlnp | grep -w pid={pid}", _on(facts, pid, f"where it listens; then ask its {path}: {why}"))
    host, _, port = address.rpartition(":")
    host = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]", "*": "127.0.0.1"}.get(host, host)  # noqa: S104 - read, not bound
    return step(f"curl -sS -m 2 {shlex.quote(f'http://{host}:{port}{path}')}{found}", _on(facts, pid, why))


def flags(pid: int, why: str) -> str:
    """Show the flags that a process was started with, which the snapshot has even where a title took their place."""
    return step(f"freezeframe show FILE processes | grep -A 8 -w 'pid {pid}'", why)


def quota(cgroup: str, why: str) -> str:
    """Show CPU quota and throttling of a cgroup, of either version, wherever it is mounted."""
    files = "cpu.{max,cfs_quota_us,cfs_period_us,stat}"
    return step(f"cat /sys/fs/cgroup{{,/unified,/cpu}}{shlex.quote(cgroup)}/{files} 2>/dev/null", why)


def thaw(cgroup: str, why: str) -> str:
    """Thaw a cgroup of either version."""
    path = shlex.quote(cgroup)
    second = f"echo 0 | tee /sys/fs/cgroup{{,/unified}}{path}/cgroup.freeze 2>/dev/null"
    first = f"echo THAWED | tee /sys/fs/cgroup/freezer{path}/freezer.state 2>/dev/null"
    return step(f"{second}; {first}", why)


def restart(facts: Facts, pid: int, why: str) -> str:
    """Restart what runs a process; without a unit or pod, show what does."""
    process = facts.processes.get(pid)
    if process is not None and process.pod:
        space = f" -n {shlex.quote(process.namespace)}" if process.namespace else ""
        return step(f"kubectl delete pod{space} {shlex.quote(process.pod)}", f"restarts it: {why}")
    if process is not None and process.unit.endswith(".service"):
        return step(f"systemctl restart {shlex.quote(process.unit)}", _on(facts, pid, f"restarts it: {why}"))
    parent = process.parent_pid if process is not None else 0
    parents = f" -p {parent}" if parent else ""
    why = _on(facts, pid, f"what started it, and would start it again: {why}")
    return step(f"ps -o pid,ppid,lstart,args -p {pid}{parents}", why)


def _read(facts: Facts, pid: int) -> str:
    process = facts.processes.get(pid)
    # The parts of an engine share the log of its HTTP process.
    pids = (pid, process.engine_pid) if process is not None and process.engine_pid else (pid,)
    sources = [each for each in facts.snapshot.log_sources if each.pid in pids and not each.error and each.name]
    if sources:
        return _source(sources[0])
    if process is not None and process.unit.endswith(".service"):
        return f"journalctl --no-pager -n {_LINES} -u {shlex.quote(process.unit)}"
    return f"tail -n {_LINES} /proc/{pid}/fd/1 /proc/{pid}/fd/2"


def _source(source: LogSource) -> str:
    if source.kind == "journal":
        return f"journalctl --no-pager -n {_LINES} -u {shlex.quote(source.name)}"
    return f"tail -n {_LINES} {shlex.quote(source.name)}"


def traces(facts: Facts, pids: Iterable[int]) -> tuple[str, ...]:
    """What NCCL, torch and CUDA have ready for these processes; none of it is set off by itself."""
    own = frozenset(pids)
    found: dict[str, str] = {}
    for trace in facts.snapshot.debug_traces:
        if trace.pid not in own:
            continue
        if trace.kind == "cuda core pipe":
            pipe = shlex.quote(f"/proc/{trace.pid}/root{trace.path}")
            why = "a core dump of its GPUs names the kernel; it ENDS the process unless its flags say"
            found.setdefault(trace.kind, step(f"echo 1 > {pipe}", f"{why} skip_abort (CUDA_COREDUMP_GENERATION_FLAGS)"))
        elif trace.kind == "flight recorder" and trace.kind not in found:
            folder, _, name = trace.path.rpartition("/")
            prefix = shlex.quote(name.rstrip("0123456789"))
            place = shlex.quote(f"/proc/{trace.pid}/root{folder}")
            age = "" if trace.age_ms is None else f", the newest from {trace.age_ms / 1000:.0f} s ago"
            found[trace.kind] = step(
                f"torchfrtrace --prefix {prefix} {place}", f"which rank left which collective{age}"
            )
        elif trace.kind == "nccl ras":
            found.setdefault(trace.kind, step("freezeframe show FILE ranks", "what NCCL's RAS answered, rank by rank"))
    return tuple(found.values())
