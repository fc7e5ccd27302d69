"""read_logs: what the logs of routers and engines say, wherever their lines go.

Reads, up to the job's caps for each log: the end of each regular file that a target has open as standard output,
standard error or *.log, with the rotated files before it; where its output goes to whoever collects it, its
container's log (Docker's json-file, Podman's, the CRI's under /var/log/pods) or its unit's or container's lines in
the journal, through journalctl. Privilege: CAP_DAC_READ_SEARCH and CAP_SYS_PTRACE for others' files. Cost: 4 MB of
log take half a second. Cannot see: pipes and terminals that neither a runtime nor a journal collects, compressed
files, lines older than the caps, whether a started request is in flight or was given up by its client (the log has no
line for that).
Lines never leave this process: only request ids, methods, paths, statuses, latencies and what patterns capture.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.host import Host, cgroups, containers, procfs
from freezeframe.agentd.host.container_lines import Line, unwrap
from freezeframe.agentd.host.journal import JournalError, read_journal
from freezeframe.agentd.host.log_patterns import line_time, read_lines
from freezeframe.agentd.host.log_tail import LINE_BYTES, OpenLog, Tail, log_file, open_logs, read_tail, rotated_before
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import LogFinding, LogSource, Process, Snapshot

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
# Docker writes pieces of 16 KiB, each of their bytes as up to six.
_WRAPPED_LINE_BYTES = 16 * LINE_BYTES
# Share of the job's time after which no further log is begun, and the most that the journal gets, seconds.
_SHARE = 0.6
_JOURNAL_S = 2.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """Lines of one log and where they come from."""

    source: LogSource
    lines: Sequence[bytes]
    # When whoever collects them got each; empty when nobody does.
    times: Sequence[float] = ()
    written: float


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over LogRequest, LogFinding and LogSource records."""
    reader = _Reader(job, host, report)
    for target in sorted(job.targets, key=lambda target: target.role not in _OWNERS):
        reader.read(target)


class _Reader:
    """Reads the logs of one job's targets, each log once."""

    def __init__(self, job: Job, host: Host, report: Report) -> None:
        self._job = job
        self._host = host
        self._report = report
        self._until = host.clock.monotonic() + job.deadline_ms / 1000.0 * _SHARE
        boot = host.clock.wall() - host.clock.boottime()
        # When each process began, seconds since the epoch.
        self._began = {target.pid: boot + target.start_ticks / _TICKS_PER_SECOND for target in job.targets}
        self._seen: set[tuple[int, int] | str] = set()
        self._findings: dict[tuple[int, str], LogFinding] = {}

    def read(self, target: Target) -> None:
        """Read all logs of one target."""
        pid = target.pid
        directory = self._host.proc(pid)
        self._report.doing(f"listing {directory}/fd")
        try:
            logs = open_logs(directory)
        except OSError as error:
            self._report.missed(pid, f"listing its descriptors: {error.strerror}")
            return
        for log in logs:
            if log.collected or log.identity in self._seen:
                continue
            self._seen.add(log.identity)
            if log.error:
                self._report.part(
                    Snapshot(log_sources=(LogSource(pid=pid, kind="file", name=log.name, error=log.error),))
                )
            elif self._has_time(pid):
                self._read_file(pid, "file", log)
        collected = [log for log in logs if log.collected]
        if (
            collected
            and self._has_time(pid)
            and not self._read_collected(pid, directory, streams=any(log.collected == "stream" for log in collected))
        ):
            unread = (LogSource(pid=pid, kind="file", name=log.name, error=log.error) for log in collected)
            self._report.part(Snapshot(log_sources=tuple(unread)))
        self._report.done(pid)

    def _has_time(self, pid: int) -> bool:
        if self._host.clock.monotonic() < self._until:
            return True
        self._report.missed(pid, "no time was left for all of its logs")
        return False

    def _read_collected(self, pid: int, directory: str, *, streams: bool) -> bool:
        """Read what a container runtime, or of a stream the journal, has of its output; whether one has."""
        try:
            group = cgroups.parse_cgroup(procfs.cgroup(directory))
        except procfs.ProcfsError:
            return False
        if group.container:
            self._report.doing(f"looking for the log of container {group.container[:12]}")
            found = containers.log_of(self._host, group.container)
            if found is None:
                return False
            if found.kind == "journal":
                return self._read_journal(pid, group.container[:12], (f"CONTAINER_ID_FULL={group.container}",))
            log = log_file(found.path)
            if log is not None and log.identity not in self._seen:
                self._seen.add(log.identity)
                self._read_file(pid, found.kind, log)
            return log is not None
        if streams and group.unit.endswith(".service"):
            return self._read_journal(
                pid, group.unit, (f"_SYSTEMD_UNIT={group.unit}", f"_SYSTEMD_USER_UNIT={group.unit}")
            )
        return False

    def _read_file(self, pid: int, kind: str, log: OpenLog) -> None:
        """Read the end of a file and, as far as the caps allow, of the rotated ones before it."""
        caps = self._job.caps
        bytes_left, lines_left = caps.log_bytes, caps.log_lines
        read: list[_Lines] = []
        link = log.path
        waiting = [log]
        while waiting:
            one = waiting.pop(0)
            self._report.doing(f"reading {one.path}")
            try:
                if not read and kind == "file":
                    link = self._host.proc(pid, "root") + os.readlink(log.path)
                tail = read_tail(one, bytes_left, lines_left, LINE_BYTES if kind == "file" else _WRAPPED_LINE_BYTES)
            except OSError as error:
                failed = LogSource(pid=pid, kind=kind, name=one.name, error=f"reading it: {error.strerror}")
                self._report.part(Snapshot(log_sources=(failed,)))
                break
            read.insert(0, _lines(pid, kind, one, tail))
            bytes_left -= tail.bytes_read
            lines_left -= len(tail.lines)
            if tail.bytes_skipped or bytes_left <= 0 or lines_left <= 0 or not self._has_time(pid):
                break
            if one is log:
                folder, own = os.path.split(link)
                waiting = [
                    each
                    for each in rotated_before(log, folder, own, _first_time(read[0]))
                    if each.identity not in self._seen
                ]
        self._hand_over(pid, read)

    def _read_journal(self, pid: int, name: str, matches: tuple[str, ...]) -> bool:
        if name in self._seen:
            return True
        self._seen.add(name)
        self._report.doing(f"reading the journal of {name}")
        try:
            found = read_journal(
                self._host,
                matches,
                since=self._began[pid],
                max_bytes=self._job.caps.log_bytes,
                max_lines=self._job.caps.log_lines,
                limit_s=min(_JOURNAL_S, max(0.1, self._until - self._host.clock.monotonic())),
            )
        except JournalError as error:
            self._report.part(Snapshot(log_sources=(LogSource(pid=pid, kind="journal", name=name, error=str(error)),)))
            return True
        if not found.entries:
            return False
        # A unit may run several of the targets; what none of them wrote is told of the first.
        by_pid: dict[int, list[Line]] = {pid: []}
        for entry in found.entries:
            by_pid.setdefault(entry.pid if entry.pid in self._began else pid, []).append(
                Line(entry.time, entry.message)
            )
        source = LogSource(
            pid=pid,
            kind="journal",
            name=name,
            bytes_read=float(found.bytes_read),
            lines=len(found.entries),
            covers_ms=max(0.0, (self._host.clock.wall() - found.entries[0].time) * 1000.0),
            lines_cut=found.lines_cut,
            error=found.missing and f"not read: {found.missing}",
        )
        self._report.part(Snapshot(log_sources=(source,)))
        for writer, lines in by_pid.items():
            told = [line.text for line in lines]
            self._understand(writer, told, [line.time for line in lines], written=found.entries[-1].time)
        return True

    def _hand_over(self, pid: int, read: Sequence[_Lines]) -> None:
        """Understand files, oldest first, as one log, and tell each as a source."""
        if not read:
            return
        lines = [line for one in read for line in one.lines]
        times = [moment for one in read for moment in one.times]
        covers = self._understand(pid, lines, times, written=read[-1].written)
        sources = [replace(one.source, covers_ms=covers if one is read[0] else self._covers(one)) for one in read]
        self._report.part(Snapshot(log_sources=tuple(reversed(sources))))

    def _covers(self, one: _Lines) -> float | None:
        first = _first_time(one) if one.lines else None
        return None if first is None else max(0.0, (self._host.clock.wall() - first) * 1000.0)

    def _understand(self, pid: int, lines: Sequence[bytes], times: Sequence[float], *, written: float) -> float | None:
        now = self._host.clock.wall()
        said = read_lines(
            lines,
            pid,
            now,
            written=written,
            zone_s=float(time.localtime(now).tm_gmtoff),
            times=times,
            began=self._began[pid],
        )
        # Of a program that writes each line to two logs, too: the higher count.
        for finding in said.findings:
            before = self._findings.get((pid, finding.pattern))
            if before is None or finding.count > before.count:
                self._findings[pid, finding.pattern] = finding
        findings = tuple(self._findings[pid, finding.pattern] for finding in said.findings)
        self._report.part(Snapshot(log_requests=said.requests, log_findings=findings))
        return said.covers_ms


def _lines(pid: int, kind: str, log: OpenLog, tail: Tail) -> _Lines:
    lines: tuple[bytes, ...] = tail.lines
    times: tuple[float, ...] = ()
    if kind != "file":
        unwrapped = unwrap(kind, tail.lines)
        lines, times = tuple(line.text for line in unwrapped), tuple(line.time for line in unwrapped)
    source = LogSource(
        pid=pid,
        kind=kind,
        name=log.name,
        bytes_read=float(tail.bytes_read),
        lines=len(lines),
        bytes_skipped=float(tail.bytes_skipped),
        lines_cut=tail.lines_cut,
    )
    return _Lines(source=source, lines=lines, times=times, written=tail.written)


def _first_time(one: _Lines) -> float:
    """When a log begins, as far as that is sure; else when it was last written."""
    if one.times:
        return one.times[0]
    stamps = (line_time(line, one.written) for line in one.lines[:20])
    return next((stamp.seconds for stamp in stamps if stamp is not None and not stamp.local), one.written)


def _wants(target: Target) -> bool:
    return target.role in _ROLES


READ_LOGS = Collector(name="read_logs", tier=Tier.OUTSIDE, collect=collect, wants=_wants)
