"""read_kernel_log: what the kernel has said of GPUs, memory, hangs, disks and network cards.

Reads: /dev/kmsg, without taking anything from other readers. Privilege: CAP_SYSLOG where dmesg is restricted. Cost:
10 ms for a full log of 10,000 lines. Cannot see: what the kernel's buffer has overwritten; lines that a user wrote are
counted and never believed.
"""

from __future__ import annotations

from freezeframe.agentd.collectors.contract import Collector, Report, Tier, UnavailableError
from freezeframe.agentd.host import Host, kernel_log
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import KernelEvent, Snapshot

# The newest are kept.
_EVENTS = 500


def collect(_job: Job, host: Host, report: Report) -> None:
    """Hand over KernelEvent records, oldest first."""
    path = str(host.root / "dev/kmsg")
    report.doing(f"reading {path}")
    try:
        read = kernel_log.read(path)
    except PermissionError as error:
        raise UnavailableError(
            f"reading {path}: permission denied", "run the agent as root or grant CAP_SYSLOG"
        ) from error
    except OSError as error:
        raise UnavailableError(f"reading {path}: {error.strerror}", "without it: dmesg on the host") from error
    now_ms = host.clock.monotonic() * 1000.0
    events = tuple(
        KernelEvent(
            kind=event.kind,
            age_ms=max(0.0, now_ms - record.at_us / 1000.0),
            text=event.text,
            pid=event.pid,
            code=event.code,
            device=event.device,
            meaning=event.meaning,
            action=event.action,
            fatal=event.fatal,
        )
        for record, event in kernel_log.find_events(read.records)
    )
    report.part(Snapshot(kernel_events=events[-_EVENTS:]))
    lost = {
        "lines were overwritten before they could be read": read.overwritten,
        "older lines are over the cap": read.cut,
        "older events are over the cap": max(0, len(events) - _EVENTS),
    }
    for what, count in lost.items():
        if count:
            report.partial(f"{count} {what}")


READ_KERNEL_LOG = Collector(name="read_kernel_log", tier=Tier.OUTSIDE, collect=collect, wants=None)
