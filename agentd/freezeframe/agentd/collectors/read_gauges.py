"""read_gauges: what engines and routers say of themselves, read without asking them: each value with its age.

Reads files that the processes have open or mapped: those in which prometheus_client keeps the series of one process of
several, and SGLang's load snapshots in /dev/shm. Privilege: CAP_SYS_PTRACE for processes of others. Cost to the target:
none; a list of open files and, of a Python where that names none, a look at /proc/PID/maps. Works while an event loop
is blocked, and while a process is stopped.

A gauge whose most recent value counts and a load snapshot carry the time at which they were written; for the others the
age is unknown, and only what changes over the window tells that they live. Cannot see: series that a process keeps in
its own memory alone, as vLLM with one API server does; files of processes that have ended, and those that a fork has
left open in another process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.collectors.readable import may_be_read
from freezeframe.agentd.host import Host, exposition, load_snapshots, open_files, procfs, prometheus_files
from freezeframe.agentd.host.open_files import OpenFile
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import Metric, Process, Snapshot

PROMETHEUS, LOADS = "mmap", "load snapshot"
# A slot of a load snapshot is written in microseconds.
_TRIES, _AGAIN_S = 5, 0.001
_PATIENCE_MS = 1000.0
Role = Process.Role
ROLES = frozenset(
    {
        *(Role.ENGINE_HTTP, Role.TOKENIZER_WORKER, Role.SCHEDULER, Role.DP_CONTROLLER, Role.WORKER, Role.DETOKENIZER),
        Role.ROUTER,
    }
)
SeriesKey = tuple[int, str, tuple[tuple[str, str], ...], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One file and whose series it holds."""

    pid: int
    # "gauge_mostrecent", "counter" ... or LOADS.
    kind: str
    file: OpenFile


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over Metric records, after the window again with what changed."""
    looks = Looks(find_sources(job, host, report), job, host, report)
    before = looks.take({})
    if before and job.window_ms:
        report.doing("waiting for the second look")
        host.clock.sleep(job.window_ms / 1000.0)
        looks.take(before)
    for target in job.targets:
        report.done(target.pid)


def find_sources(job: Job, host: Host, report: Report) -> list[Source]:
    """The files that hold series of these targets."""
    sources = []
    # Several processes have one load snapshot open: it is a scheduler's.
    for target in sorted(job.targets, key=lambda each: each.role is not Role.SCHEDULER):
        sources += _sources(target, host, report)
    return sources


def _sources(target: Target, host: Host, report: Report) -> list[Source]:
    directory = host.proc(target.pid)
    report.doing(f"listing the files of {target.pid}")
    try:
        if procfs.stat(directory).start_ticks != target.start_ticks:
            report.missed(target.pid, "the process ended and another one has its pid now")
            return []
        # A file that a fork has left open is named after another process.
        own = procfs.status(directory).namespace_pids[-1:] or (target.pid,)
        files = _named(open_files.opened(directory), own[0])
        if not files and target.python and may_be_read(target, host, report):
            report.doing(f"reading the mappings of {target.pid}")
            files = _named(open_files.mapped(directory), own[0])
    except procfs.GoneError:
        return []
    except procfs.ProcfsError as error:
        report.missed(target.pid, str(error))
        return []
    return [Source(pid=target.pid, kind=kind, file=file) for kind, file in files]


def _named(files: Iterable[OpenFile], own: int) -> list[tuple[str, OpenFile]]:
    """Those that hold series, each once, with their kind."""
    found = {}
    for file in files:
        match = prometheus_files.NAME.search(file.name)
        if match is not None and int(match["pid"]) == own:
            found[file.name] = match["kind"], file
        elif load_snapshots.NAME.search(file.name):
            found[file.name] = LOADS, file
    return list(found.values())


class Looks:
    """Looks at the same files, one after the other."""

    def __init__(self, sources: list[Source], job: Job, host: Host, report: Report) -> None:
        self._sources = sources
        self._cap = job.caps.metric_bytes
        self._host = host
        self._report = report
        # Files that were told to be wrong, once each.
        self._wrong: set[str] = set()

    def take(self, before: dict[SeriesKey, float]) -> dict[SeriesKey, float]:
        """Hand over every series; returns their values."""
        values: dict[SeriesKey, float] = {}
        for metrics in self.read():
            told = []
            for metric in metrics:
                key = (metric.pid, metric.name, metric.labels, metric.source)
                values[key] = metric.value
                told.append(replace(metric, delta=metric.value - before[key]) if key in before else metric)
            self._report.part(Snapshot(metrics=tuple(told)))
        return values

    def read(self) -> Iterator[list[Metric]]:
        """Every series as it is now, file by file."""
        seen: set[tuple[int, int]] = set()
        for source in self._sources:
            self._report.doing(f"reading {source.file.name} of {source.pid}")
            try:
                yield self._read(source, seen)
            except procfs.GoneError:
                continue
            except (procfs.ProcfsError, ValueError) as error:
                self._miss(source, str(error))

    def _read(self, source: Source, seen: set[tuple[int, int]]) -> list[Metric]:
        with open_files.reading(source.file) as (descriptor, state):
            if (state.st_dev, state.st_ino) in seen:
                return []
            seen.add((state.st_dev, state.st_ino))
            if source.kind == LOADS:
                return self._loads(source, descriptor, state.st_size)
            return self._series(source, descriptor)

    def _series(self, source: Source, descriptor: int) -> list[Metric]:
        used = prometheus_files.used_bytes(os.pread(descriptor, prometheus_files.HEADER_BYTES, 0))
        data = os.pread(descriptor, min(used, self._cap), 0)
        now = self._host.clock.wall()
        if used > self._cap:
            self._miss(source, f"{source.file.name}: {used} bytes, read {self._cap}")
        entries, wrong = prometheus_files.parse(data, source.kind)
        if wrong and used <= self._cap:
            self._miss(source, f"{source.file.name}: {wrong}")
        sums: dict[tuple[str, tuple[tuple[str, str], ...]], Metric] = {}
        for entry in entries:
            key = exposition.known_series(entry.name, entry.labels)
            if key is None or (key not in sums and len(sums) >= exposition.MAX_SERIES):
                continue
            age = None if entry.written_s is None else max(0.0, (now - entry.written_s) * 1000.0)
            other = sums.get(key)
            if other is not None:
                # Series that differ only in labels that are not kept are one, as old as the oldest.
                age = None if age is None or other.age_ms is None else max(age, other.age_ms)
            value = entry.value + (0.0 if other is None else other.value)
            sums[key] = Metric(name=key[0], labels=key[1], value=value, age_ms=age, pid=source.pid, source=PROMETHEUS)
        return list(sums.values())

    def _loads(self, source: Source, descriptor: int, size: int) -> list[Metric]:
        wrong = ""
        found: dict[int, list[Metric]] = {}
        for again in range(_TRIES):
            if again:
                self._host.clock.sleep(_AGAIN_S)
            wrong = ""
            for slot, payload in enumerate(load_snapshots.slots(os.pread(descriptor, min(size, self._cap), 0))):
                if slot in found:
                    continue
                try:
                    load = load_snapshots.decode(payload)
                except ValueError as error:
                    wrong = f"{source.file.name}: {error}"
                    continue
                # One that was never written has no time.
                now = self._host.clock.wall()
                found[slot] = exposition.read_load(load, source.pid, LOADS, now) if load.get("timestamp") else []
            if not wrong:
                break
        if wrong:
            self._miss(source, wrong)
        return [metric for slot in sorted(found) for metric in found[slot]]

    def _miss(self, source: Source, why: str) -> None:
        if source.file.name not in self._wrong:
            self._wrong.add(source.file.name)
            self._report.missed(source.pid, why)


READ_GAUGES = Collector(
    name="read_gauges",
    tier=Tier.OUTSIDE,
    collect=collect,
    wants=lambda target: target.role in ROLES,
    patience_ms=_PATIENCE_MS,
)
