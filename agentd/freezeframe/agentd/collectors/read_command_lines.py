"""read_command_lines: titles and arguments of processes, once in their life. A first step of a capture, not shown.

Reads: /proc/PID/cmdline, which waits for the target's mmap_lock: a stalled one hangs even beyond SIGKILL, so each read
is announced, and a target that takes longer than the collector's patience is left out. Privilege: none.
Cost: 20 microseconds per process. Cannot see: the arguments of a process that has overwritten them with its title.
"""

from __future__ import annotations

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.host import Host, procfs
from freezeframe.agentd.host.argv import allowed
from freezeframe.agentd.host.text import escape
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import Process, Snapshot

_LIMIT = 128 * 1024
_ARGUMENTS = 500
_PATIENCE_MS = 200.0


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over one record per target with title, argv and argv_source."""
    for target in job.targets:
        path = host.proc(target.pid, "cmdline")
        report.doing(f"reading {path}")
        try:
            data = procfs.read_file(path, _LIMIT)
        except procfs.ProcfsError:
            data = b""
        report.part(Snapshot(processes=(command_line(target.pid, data, job.caps.text_bytes),)))
        report.done(target.pid)


def command_line(pid: int, data: bytes, limit: int) -> Process:
    """Parse a cmdline: arguments each end in a NUL; a title that was written over them is padded with them."""
    stripped = data.rstrip(b"\0 ")
    if not stripped:
        return Process(pid=pid)
    arguments = [escape(each, limit) for each in stripped.split(b"\0")[:_ARGUMENTS]]
    titled = len(arguments) == 1 and (b"::" in stripped or b" " in stripped)
    if titled:
        return Process(pid=pid, title=arguments[0] if "::" in arguments[0] else arguments[0].split(" ")[0])
    kept = allowed(arguments)
    return Process(pid=pid, title=" ".join(kept)[:limit], argv=kept, argv_source="own")


READ_COMMAND_LINES = Collector(
    name="read_command_lines", tier=Tier.MEMORY, collect=collect, patience_ms=_PATIENCE_MS, wants=lambda _target: True
)
