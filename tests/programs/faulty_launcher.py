"""A launcher whose collectors misbehave; run as `python faulty_launcher.py CONTROL_FD`."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time

from freezeframe.agentd.collectors.contract import Collector, Report, SkippedError, Tier, UnavailableError
from freezeframe.agentd.frames import Done, encode
from freezeframe.agentd.host import Host
from freezeframe.agentd.jobs import Job
from freezeframe.agentd.launcher import main
from freezeframe.agentd.worker import WorkerLimits
from freezeframe.judge.model import Process, Snapshot

# A target with this start time is one whose read never ends.
STUCK_START_TICKS = 666
# One whose worker crashes, and one whose read nothing ends while the file named in STALL_VARIABLE hangs.
CRASH_START_TICKS = 667
STALLED_START_TICKS = 668
STALL_VARIABLE = "FREEZEFRAME_TEST_STALL"
# The worker's pipe.
PIPE = 3


def look(job: Job, host: Host, report: Report) -> None:
    for target in job.targets:
        report.doing(f"reading /proc/{target.pid}/cmdline")
        if target.start_ticks == STUCK_START_TICKS:
            time.sleep(60)
        if target.start_ticks == CRASH_START_TICKS:
            os.kill(os.getpid(), signal.SIGSEGV)
        if target.start_ticks == STALLED_START_TICKS:
            with open(os.environ[STALL_VARIABLE], "rb", buffering=0) as file:
                file.read(8)
        report.part(Snapshot(processes=(Process(pid=target.pid, comm="looked"),)))
        report.done(target.pid)


def hang_in_a_pipe(job: Job, host: Host, report: Report) -> None:
    report.doing("opening a fifo")
    time.sleep(60)


def crash(job: Job, host: Host, report: Report) -> None:
    report.doing("crashing")
    os.kill(os.getpid(), signal.SIGSEGV)


def fail(job: Job, host: Host, report: Report) -> None:
    raise RuntimeError("seven\nlines")


def lack(job: Job, host: Host, report: Report) -> None:
    raise UnavailableError("py-spy is not installed", "pip install 'freezeframe[agent]'")


def skip(job: Job, host: Host, report: Report) -> None:
    raise SkippedError("nothing here")


def flood_parts(job: Job, host: Host, report: Report) -> None:
    while True:
        report.part(Snapshot(processes=tuple(Process(pid=pid, comm="x" * 1000) for pid in range(1, 100))))


def flood_frames(job: Job, host: Host, report: Report) -> None:
    frames = encode(Done(pid=1)) * 10_000
    while True:
        os.write(PIPE, frames)


def flood_doing(job: Job, host: Host, report: Report) -> None:
    for number in itertools.count():
        report.doing(f"step {number}")


def tell_surroundings(job: Job, host: Host, report: Report) -> None:
    descriptors = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    with open("/proc/self/oom_score_adj") as file:
        badness = file.read().strip()
    report.partial(f"{descriptors[:-1]} {os.getpgrp() == os.getpid()} {badness}")


def drive_gpu(job: Job, host: Host, report: Report) -> None:
    """Take SIGTERM as a driver would: not at all."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report.doing("asking the driver")
    time.sleep(60)


def leave_helper(job: Job, host: Host, report: Report) -> None:
    """End well, but for a helper that is stuck on the last target."""
    for target in job.targets:
        if target.start_ticks == STALLED_START_TICKS:
            subprocess.Popen(["cat", os.environ[STALL_VARIABLE]], stdout=subprocess.DEVNULL)
            time.sleep(0.1)
            report.missed(target.pid, "cat gave no answer")
        else:
            report.done(target.pid)


def eat_memory(job: Job, host: Host, report: Report) -> None:
    report.doing("eating")
    eaten = []
    while True:
        eaten.append(bytearray(64 * 1024 * 1024))


def big(job: Job, host: Host, report: Report) -> None:
    for _ in range(20):
        report.part(Snapshot(processes=tuple(Process(pid=pid, comm="x" * 100) for pid in range(1, 5001))))


def foreign(job: Job, host: Host, report: Report) -> None:
    os.write(PIPE, b"\x63\xff\xff\xff\xff" + b"garbage")
    time.sleep(60)


def collector(name: str, collect: object, tier: Tier = Tier.OUTSIDE, patience_ms: float | None = None) -> Collector:
    return Collector(name=name, tier=tier, collect=collect, patience_ms=patience_ms)  # type: ignore[arg-type]


COLLECTORS = (
    collector("look", look, Tier.MEMORY, 200.0),
    collector("look_impatiently", look, Tier.LOCK_FREE),
    collector("hang", hang_in_a_pipe),
    collector("crash", crash),
    collector("fail", fail),
    collector("lack", lack),
    collector("skip", skip),
    collector("eat_memory", eat_memory),
    collector("flood_parts", flood_parts),
    collector("flood_frames", flood_frames),
    collector("flood_doing", flood_doing),
    collector("tell_surroundings", tell_surroundings),
    Collector(name="drive_gpu", tier=Tier.OUTSIDE, collect=drive_gpu, in_gpu_driver=True),
    collector("leave_helper", leave_helper, Tier.MEMORY),
    collector("big", big),
    collector("foreign", foreign),
)

if __name__ == "__main__":
    main(int(sys.argv[1]), COLLECTORS, WorkerLimits(memory_bytes=256 * 1024 * 1024))
