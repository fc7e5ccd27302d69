"""snapshot_host: what the host as a whole suffers from: load, memory, pressure, full disks, throttled cgroups.

Reads: /proc/{loadavg,meminfo,uptime,vmstat,pressure/*,sys/kernel/*}, /sys/kernel/security/lockdown, cpu.stat of the
targets' cgroups, statvfs of local file systems. Privilege: none. Cost: 1 ms per look. Cannot see: network file
systems, whose statvfs can hang.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import replace

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.host import Host as World
from freezeframe.agentd.host import procfs
from freezeframe.agentd.host.text import escape
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import Filesystem, Host, Pressure, Snapshot

_RESOURCES = ("cpu", "memory", "io")
_PRESSURE = re.compile(rb"^(some|full) avg10=([\d.]+) avg60=([\d.]+) avg300=[\d.]+ total=(\d+)", re.MULTILINE)
_MEMINFO = re.compile(rb"^(\w+):\s+(\d+) kB", re.MULTILINE)
# Looked at, never written to.
_FILESYSTEMS = (("/", "root file system"), ("/dev/shm", "shared memory"), ("/tmp", "temporary files"))  # noqa: S108


def collect(job: Job, host: World, report: Report) -> None:
    """Hand over one Host record, again after the window with what moved."""
    report.doing("reading /proc")
    first, totals, kills = _look(host)
    report.part(Snapshot(host=first))
    if not job.window_ms:
        return
    report.doing(f"waiting {job.window_ms:.0f} ms for the second look")
    host.clock.sleep(job.window_ms / 1000.0)
    second, totals_after, kills_after = _look(host)
    window_us = job.window_ms * 1000.0
    pressure = tuple(
        replace(
            each,
            some_window=min(100.0, 100.0 * max(0.0, totals_after[each.resource] - totals[each.resource]) / window_us)
            if each.resource in totals and each.resource in totals_after
            else None,
        )
        for each in second.pressure
    )
    delta = None if kills is None or kills_after is None else kills_after - kills
    report.part(Snapshot(host=replace(second, pressure=pressure, oom_kills_delta=delta)))


def _look(host: World) -> tuple[Host, dict[str, float], float | None]:
    memory = {name.decode(): float(number) * 1024.0 for name, number in _MEMINFO.findall(_read(host, "meminfo"))}
    load = _read(host, "loadavg").split()[:3]
    uptime = _read(host, "uptime").split()
    pressure, totals = [], {}
    for resource in _RESOURCES:
        rows = {kind: values for kind, *values in _PRESSURE.findall(_read(host, f"pressure/{resource}"))}
        if b"some" not in rows:
            continue
        some, full = rows[b"some"], rows.get(b"full", [b"0", b"0", b"0"])
        totals[resource] = float(some[2])
        pressure.append(
            Pressure(
                resource=resource,
                some_avg10=float(some[0]),
                some_avg60=float(some[1]),
                full_avg10=float(full[0]),
                full_avg60=float(full[1]),
            )
        )
    found = re.search(rb"^oom_kill (\d+)", _read(host, "vmstat"), re.MULTILINE)
    kills = float(found[1]) if found else None
    lockdown = re.search(rb"\[(\w+)\]", _file(str(host.root / "sys/kernel/security/lockdown")))
    uname = os.uname()
    return (
        Host(
            kernel=uname.release,
            cpus=os.cpu_count() or 0,
            load=tuple(float(each) for each in load),
            memory_total_bytes=memory.get("MemTotal", 0.0),
            memory_available_bytes=memory.get("MemAvailable", 0.0),
            swap_used_bytes=memory.get("SwapTotal", 0.0) - memory.get("SwapFree", 0.0),
            uptime_ms=float(uptime[0]) * 1000.0 if uptime else 0.0,
            pressure=tuple(pressure),
            filesystems=_filesystems(),
            lockdown=lockdown[1].decode() if lockdown else "",
            distribution=_distribution(host),
            architecture=uname.machine,
            oom_kills=kills,
        ),
        totals,
        kills,
    )


def _filesystems() -> tuple[Filesystem, ...]:
    found = []
    for mount, purpose in _FILESYSTEMS:
        try:
            stat = os.statvfs(mount)
        except OSError:
            continue
        found.append(
            Filesystem(
                mount=mount,
                purpose=purpose,
                size_bytes=float(stat.f_blocks * stat.f_frsize),
                available_bytes=float(stat.f_bavail * stat.f_frsize),
                free_inodes=float(stat.f_favail) if stat.f_files else None,
            )
        )
    return tuple(found)


def _distribution(host: World) -> str:
    del host
    try:
        return escape(platform.freedesktop_os_release().get("PRETTY_NAME", "").encode(), 100)
    except OSError:
        return ""


def _read(host: World, name: str) -> bytes:
    return _file(host.proc(name))


def _file(path: str) -> bytes:
    try:
        return procfs.read_file(path)
    except procfs.ProcfsError:
        return b""


SNAPSHOT_HOST = Collector(name="snapshot_host", tier=Tier.LOCK_FREE, collect=collect, wants=None)
