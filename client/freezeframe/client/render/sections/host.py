"""The host, its GPUs and its kernel's log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Bullets, Column, Paragraph, Table
from freezeframe.client.render.sections.contract import Snapshot, item
from freezeframe.client.render.values import NOTHING, optional, pids, role
from freezeframe.v1 import host_pb2


def host(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show what would starve the path: pressure, memory, disks, limits."""
    if not snapshot.HasField("host"):
        return ()
    it = snapshot.host
    facts = [
        f"kernel {it.kernel}, {it.distribution or 'distribution unknown'}, {it.architecture}".rstrip(", "),
        f"up {units.age(it.uptime_ms)}, {it.cpus} CPUs, load {' '.join(f'{each:.2f}' for each in it.load)}",
        f"memory: {units.size(it.memory_available_bytes)} of {units.size(it.memory_total_bytes)} available",
        f"swap: {units.size(it.swap_used_bytes)} used",
        f"lockdown {it.lockdown or 'unknown'}, clock {it.clock or 'unknown'}",
    ]
    if it.HasField("oom_kills"):
        during = f", {units.number(it.oom_kills_delta)} between the looks" if it.HasField("oom_kills_delta") else ""
        facts.append(f"{units.number(it.oom_kills)} OOM kills since boot{during}")
    facts += [f"{name} {it.versions[name]}" for name in sorted(it.versions)]
    facts += [_throttle(each) for each in it.throttles]
    blocks: list[Block] = [Bullets(items=tuple(item(fact) for fact in facts))]
    if it.pressure:
        blocks += [Paragraph(text=""), _pressure(it)]
    if it.filesystems:
        blocks += [Paragraph(text=""), _filesystems(it)]
    return tuple(blocks)


def gpus(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show utilisation beside power: high with low power is a spin."""
    if not snapshot.gpus:
        return ()
    columns = (
        Column(title="GPU", right=True),
        Column(title="NAME", flexible=True),
        Column(title="BUSY", right=True),
        Column(title="POWER", right=True),
        Column(title="CLOCK", right=True),
        Column(title="MEMORY", right=True),
        Column(title="HEAT", right=True),
        Column(title="USED BY", flexible=True),
        Column(title="REMARKS", flexible=True),
    )
    roles = {process.pid: role(process) for process in snapshot.processes}
    rows = tuple(
        (
            str(each.index),
            each.name or NOTHING,
            optional(each, "utilization_percent", lambda value: f"{value:.0f} %"),
            optional(each, "power_watts", lambda value: f"{value:.0f} W"),
            optional(each, "sm_clock_mhz", lambda value: f"{value:.0f} MHz"),
            optional(each, "memory_used_bytes", units.size),
            optional(each, "temperature_celsius", lambda value: f"{value:.0f} C"),
            ", ".join(_user(process, roles) for process in each.processes) or NOTHING,
            ", ".join(_remarks(each)),
        )
        for each in snapshot.gpus
    )
    return (Table(columns=columns, rows=rows),)


def _user(process: host_pb2.GpuProcess, roles: Mapping[int, str]) -> str:
    """Pid, role where it has one, memory where the driver tells it."""
    words = [str(process.pid), roles.get(process.pid, "")]
    if process.HasField("memory_bytes"):
        words.append(units.size(process.memory_bytes))
    return " ".join(filter(None, words))


def _remarks(gpu: host_pb2.Gpu) -> Iterator[str]:
    """What is wrong with it or holds it back."""
    if gpu.error:
        yield gpu.error
    yield from gpu.throttle_reasons
    if gpu.ecc_uncorrected:
        yield f"{gpu.ecc_uncorrected:.0f} uncorrected ECC errors"
    if gpu.remap_failed:
        yield "remapping a row failed"
    elif gpu.remap_pending:
        yield "a row waits for a reset to be remapped"
    if gpu.nvlinks_up < gpu.nvlinks:
        yield f"{gpu.nvlinks_up:.0f} of {gpu.nvlinks:.0f} NVLinks up"


def kernel(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show what the kernel's log says, newest first."""
    events = sorted(snapshot.kernel_events, key=lambda each: each.age_ms)
    if not events:
        return ()
    return (Bullets(items=tuple(item(_event(each)) for each in events)),)


def _event(event: host_pb2.KernelEvent) -> str:
    known = "; ".join(filter(None, (event.meaning, event.action)))
    return f"{units.age(event.age_ms)} ago, {event.kind}: {event.text}" + (f" ({known})" if known else "")


def _throttle(throttle: host_pb2.Throttle) -> str:
    quota = f" of {throttle.quota_cpus:g} CPUs" if throttle.HasField("quota_cpus") else ""
    periods = (
        f"throttled in {throttle.throttled_periods_delta:.0f} of {throttle.periods_delta:.0f} periods"
        if throttle.HasField("throttled_periods_delta") and throttle.HasField("periods_delta")
        else "throttled"
    )
    return f"cgroup {throttle.cgroup}{quota}: {periods} between the looks, {pids(throttle.pids)}".rstrip(", ")


def _pressure(it: host_pb2.Host) -> Table:
    columns = (
        Column(title="PRESSURE"),
        Column(title="OF", flexible=True),
        Column(title="SOME 10 S", right=True),
        Column(title="ALL 10 S", right=True),
        Column(title="SOME 60 S", right=True),
        Column(title="ALL 60 S", right=True),
        Column(title="BETWEEN LOOKS", right=True),
    )

    def percent(value: float) -> str:
        return f"{value:.1f} %"

    rows = tuple(
        (
            each.resource,
            each.cgroup or "host",
            percent(each.some_avg10),
            percent(each.full_avg10),
            percent(each.some_avg60),
            percent(each.full_avg60),
            optional(each, "some_window", percent),
        )
        for each in it.pressure
    )
    return Table(columns=columns, rows=rows)


def _filesystems(it: host_pb2.Host) -> Table:
    columns = (
        Column(title="FILE SYSTEM", flexible=True),
        Column(title="SIZE", right=True),
        Column(title="FREE", right=True),
        Column(title="FREE INODES", right=True),
        Column(title="HOLDS", flexible=True),
    )
    rows = tuple(
        (
            each.mount,
            units.size(each.size_bytes),
            units.size(each.available_bytes),
            optional(each, "free_inodes"),
            each.purpose,
        )
        for each in it.filesystems
    )
    return Table(columns=columns, rows=rows)
