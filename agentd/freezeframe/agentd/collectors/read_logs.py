"""read_logs: what the logs of routers and engines say, from the files that they hold open.

Reads: the end of each regular file that a target has open as standard output, standard error or *.log, up to the job's
caps. Privilege: CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE for others' files. Cost: 4 MB of log take half a second. Cannot
see: pipes and terminals (whoever reads them has the lines), lines older than the caps, whether a started request is in
flight or was given up by its client (the log has no line for that).
Lines never leave this process: only request ids, methods, paths, statuses, latencies and what patterns capture.
"""

from __future__ import annotations

import time

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.host import Host
from freezeframe.agentd.host.log_patterns import read_lines
from freezeframe.agentd.host.log_tail import OpenLog, open_logs, read_tail
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import LogSource, Process, Snapshot

# They come first: the parts of an engine share the log of its HTTP process.
_OWNERS = (Process.Role.ROUTER, Process.Role.ENGINE_HTTP)
_ROLES = frozenset(
    {
        Process.Role.ROUTER,
        Process.Role.PROXY,
        Process.Role.ENGINE_HTTP,
        Process.Role.SCHEDULER,
        Process.Role.DETOKENIZER,
        Process.Role.DP_CONTROLLER,
        Process.Role.WORKER,
    }
)


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over LogRequest, LogFinding and LogSource records."""
    seen: set[tuple[int, int]] = set()
    for target in sorted(job.targets, key=lambda target: target.role not in _OWNERS):
        report.doing(f"listing {host.proc(target.pid, 'fd')}")
        try:
            logs = open_logs(host.proc(target.pid))
        except OSError as error:
            report.missed(target.pid, f"listing its descriptors: {error.strerror}")
            continue
        for log in logs:
            if log.identity not in seen:
                seen.add(log.identity)
                _read(log, target.pid, job, host, report)
        report.done(target.pid)


def _read(log: OpenLog, pid: int, job: Job, host: Host, report: Report) -> None:
    source = LogSource(pid=pid, kind="file", name=log.name, error=log.error)
    if log.error:
        report.part(Snapshot(log_sources=(source,)))
        return
    report.doing(f"reading {log.path}")
    try:
        tail = read_tail(log, job.caps.log_bytes, job.caps.log_lines)
    except OSError as error:
        failed = LogSource(pid=pid, kind="file", name=log.name, error=f"reading it: {error.strerror}")
        report.part(Snapshot(log_sources=(failed,)))
        return
    now = host.clock.wall()
    said = read_lines(tail.lines, pid, now, written=tail.written, zone_s=float(time.localtime(now).tm_gmtoff))
    report.part(
        Snapshot(
            log_requests=said.requests,
            log_findings=said.findings,
            log_sources=(
                LogSource(
                    pid=pid,
                    kind="file",
                    name=log.name,
                    bytes_read=float(tail.bytes_read),
                    lines=len(tail.lines),
                    covers_ms=said.covers_ms,
                    bytes_skipped=float(tail.bytes_skipped),
                    lines_cut=tail.lines_cut,
                ),
            ),
        )
    )


def _wants(target: Target) -> bool:
    return target.role in _ROLES


READ_LOGS = Collector(name="read_logs", tier=Tier.OUTSIDE, collect=collect, wants=_wants)
