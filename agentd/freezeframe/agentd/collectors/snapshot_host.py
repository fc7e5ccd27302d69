"""snapshot_host: what the host as a whole suffers from: load, memory, pressure, full disks, throttled cgroups.

Reads: /proc/{loadavg,meminfo,uptime,vmstat,pressure/*,self/mountinfo,driver/nvidia/version}, os-release, lockdown, the
kernel's clock state; cpu and pressure files of the targets' cgroups and of those above; statvfs of local file systems.
Privilege: none. Cost: 1 ms per look and cgroup. Cannot see: network file systems, whose statvfs can hang; pressure
where the kernel was started without it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.host import Host as World
from freezeframe.agentd.host import cgroups, procfs, system
from freezeframe.agentd.host.cgroups import Cgroup
from freezeframe.agentd.host.text import escape
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import Host, Pressure, Snapshot, Throttle

# Distinct cgroups that are looked at; serving has one per service or container.
_CGROUPS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Counters:
    """What only its growth tells."""

    at_s: float
    # Microseconds that tasks stalled, by (cgroup, resource); "" is the host.
    stalled_us: Mapping[tuple[str, str], int]
    # By cgroup.
    limits: Mapping[str, cgroups.CpuLimit]
    oom_kills: float | None


def collect(job: Job, host: World, report: Report) -> None:
    """Hand over one Host record, and again after the window with what moved."""
    report.doing("reading the host's state")
    groups = _cgroups(job, host)
    first, before = _look(host, groups)
    report.part(Snapshot(host=first))
    if not job.window_ms:
        return
    report.doing("waiting for the second look")
    host.clock.sleep(max(0.0, before.at_s + job.window_ms / 1000.0 - host.clock.monotonic()))
    report.doing("reading the host's state again")
    second, after = _look(host, groups)
    report.part(Snapshot(host=_with_growth(second, before, after)))


def _cgroups(job: Job, host: World) -> dict[Cgroup, tuple[int, ...]]:
    """The targets' cgroups with the targets in each."""
    found: dict[Cgroup, tuple[int, ...]] = {}
    for target in job.targets:
        try:
            group = cgroups.parse_cgroup(procfs.cgroup(host.proc(target.pid)))
        except procfs.ProcfsError:
            continue  # ended
        if group in found or len(found) < _CGROUPS:
            found[group] = (*found.get(group, ()), target.pid)
    return found


def _look(host: World, groups: Mapping[Cgroup, tuple[int, ...]]) -> tuple[Host, _Counters]:
    at_s = host.clock.monotonic()
    stalls: dict[tuple[str, str], system.Stalls] = {}
    limits: dict[str, cgroups.CpuLimit] = {}
    pids: dict[str, list[int]] = {}
    for resource in system.RESOURCES:
        _keep(stalls, "", resource, system.read_pressure(host, resource))
    for group, members in groups.items():
        path = cgroups.pressure_path(group)
        if path:
            for resource in system.RESOURCES:
                data = cgroups.read_pressure(host, path, resource)
                _keep(stalls, escape(path), resource, system.parse_pressure(data))
        for limit in cgroups.cpu_limits(host, group):
            limits[limit.cgroup] = limit
            pids.setdefault(limit.cgroup, []).extend(members)
    memory = system.read_memory(host)
    uname = os.uname()
    record = Host(
        kernel=uname.release,
        architecture=uname.machine,
        distribution=system.read_distribution(host),
        versions=system.read_versions(host),
        lockdown=system.read_lockdown(host),
        clock=system.read_clock(),
        cpus=os.sysconf("SC_NPROCESSORS_ONLN"),
        load=system.read_load(host),
        uptime_ms=system.read_uptime_ms(host),
        memory_total_bytes=memory.get("MemTotal", 0.0),
        memory_available_bytes=memory.get("MemAvailable", 0.0),
        swap_used_bytes=max(0.0, memory.get("SwapTotal", 0.0) - memory.get("SwapFree", 0.0)),
        oom_kills=system.read_oom_kills(host),
        filesystems=system.read_filesystems(host),
        pressure=tuple(
            Pressure(
                resource=resource,
                cgroup=cgroup,
                some_avg10=each.some_avg10,
                some_avg60=each.some_avg60,
                full_avg10=each.full_avg10,
                full_avg60=each.full_avg60,
            )
            for (cgroup, resource), each in stalls.items()
        ),
        throttles=tuple(
            Throttle(cgroup=cgroup, pids=tuple(sorted(pids[cgroup])), quota_cpus=limit.quota_cpus)
            for cgroup, limit in limits.items()
        ),
    )
    counters = _Counters(
        at_s=at_s,
        stalled_us={key: each.some_total_us for key, each in stalls.items()},
        limits=limits,
        oom_kills=record.oom_kills,
    )
    return record, counters


def _keep(
    stalls: dict[tuple[str, str], system.Stalls], cgroup: str, resource: str, found: system.Stalls | None
) -> None:
    if found is not None:
        stalls[cgroup, resource] = found


def _with_growth(record: Host, before: _Counters, after: _Counters) -> Host:
    elapsed_us = max(1.0, (after.at_s - before.at_s) * 1e6)

    def stalled(each: Pressure) -> float | None:
        key = each.cgroup, each.resource
        if key not in before.stalled_us or key not in after.stalled_us:
            return None
        grown = after.stalled_us[key] - before.stalled_us[key]
        return min(100.0, max(0.0, 100.0 * grown / elapsed_us))

    def throttled(each: Throttle) -> Throttle:
        was, now = before.limits.get(each.cgroup), after.limits.get(each.cgroup)
        if was is None or now is None:
            return each
        return replace(
            each,
            periods_delta=float(max(0, now.periods - was.periods)),
            throttled_periods_delta=float(max(0, now.throttled_periods - was.throttled_periods)),
            throttled_ms_delta=max(0.0, now.throttled_ms - was.throttled_ms),
        )

    kills = None
    if before.oom_kills is not None and after.oom_kills is not None:
        kills = max(0.0, after.oom_kills - before.oom_kills)
    return replace(
        record,
        pressure=tuple(replace(each, some_window=stalled(each)) for each in record.pressure),
        throttles=tuple(throttled(each) for each in record.throttles),
        oom_kills_delta=kills,
    )


SNAPSHOT_HOST = Collector(name="snapshot_host", tier=Tier.LOCK_FREE, collect=collect, wants=None)
