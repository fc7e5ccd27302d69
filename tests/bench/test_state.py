"""What gauges, GPUs, the kernel's log and traces for debugging add to a snap, with and without them in one run."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import pytest

from freezeframe.agentd.host import Host, procfs
from tests.bed.bed import Bed
from tests.bench.overhead import cpu_ns
from tests.bench.results import record
from tests.support.command import freezeframe
from tests.support.daemon import running_daemon

pytestmark = [pytest.mark.needs("root", "kernel", "e2e", "bench"), pytest.mark.timeout(600)]

RUNS = 20
ADDED = "read_gauges,snapshot_gpus,read_kernel_log,read_debug_traces"
BAR_MS = 100.0
# Whoever works on a capture is gone before; a worker that stays goes on for 27 s, of which this is a part.
STAYS_S, PART_S, PARTS = 4.0, 18.0, 5


def test_what_the_state_of_gpus_and_gauges_adds(tmp_path: Path) -> None:
    times: dict[str, list[float]] = {"whole": [], "without": []}
    with Bed.start(wedge="router-dual-leg") as bed, running_daemon() as agent:
        bed.wait_wedged(settled=True)
        for _ in range(RUNS):
            for name, options in (("whole", ()), ("without", ("--skip", ADDED))):
                begin = time.monotonic()
                done = freezeframe("snap", "--window", "0", *options, agent.address, cwd=tmp_path)
                times[name].append(1000.0 * (time.monotonic() - begin))
                assert "ROUTER_DUAL_LEG" in done.stdout, done.stdout + done.stderr
    # The lower quartile: what else the machine does only adds.
    whole, without = (statistics.quantiles(times[name], n=4)[0] for name in ("whole", "without"))
    record(
        "gauges, GPUs, kernel log and debug traces in snap --window 0", f"{whole - without:+.0f} ms",
        f"<= {BAR_MS:.0f} ms", f"lower quartile of {RUNS}: {whole:.0f} ms with, {without:.0f} ms without, "
        f"{whole / without:.2f} times; interleaved",
    )  # fmt: skip
    assert whole - without <= BAR_MS


def test_what_the_past_of_gauges_costs() -> None:
    """The worker that stays, and what the front does more than on a host without engines."""
    with running_daemon() as agent:
        launcher, front = (only_child(agent.pid, name) for name in ("launcher", "composition"))
        # What a start costs is over.
        time.sleep(2 * STAYS_S)
        without = [share(front) for _ in range(PARTS)]
        workers: dict[int, tuple[float, ...]] = {}
        with Bed.start(wedge="none"):
            while len(workers) < PARTS:
                begin = time.monotonic()
                while not (staying := {pid for pid in children(launcher) if age_s(pid) > STAYS_S} - workers.keys()):
                    assert time.monotonic() < begin + 60, "no worker stays"
                    time.sleep(0.5)
                stays = staying.pop()
                workers[stays] = share(stays, front)
    worker, whole = (statistics.mean(each) for each in zip(*workers.values(), strict=True))
    idle = statistics.mean(each for (each,) in without)
    record(
        "past of gauges, a pair of engines", f"{worker + whole - idle:.2f}% of a core", "<= 0.3 %",
        f"{PARTS} workers, {PART_S:.0f} s of each, to the nanosecond: the worker that stays {worker:.2f}%, the front "
        f"{whole:.2f}%, {idle:.2f}% of it also on a host without engines",
    )  # fmt: skip
    assert worker + whole - idle <= 0.3


def share(*pids: int) -> tuple[float, ...]:
    """Percent of a core that each uses in the next seconds."""
    before, begin = [cpu_ns(pid) for pid in pids], time.monotonic_ns()
    time.sleep(PART_S)
    return tuple(
        100.0 * (cpu_ns(pid) - ns) / (time.monotonic_ns() - begin) for pid, ns in zip(pids, before, strict=True)
    )


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in os.listdir(f"/proc/{pid}/task"):
        found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def only_child(pid: int, name: str) -> int:
    (found,) = [each for each in children(pid) if name in Path(f"/proc/{each}/cmdline").read_text()]
    return found


def age_s(pid: int) -> float:
    started_s: float = procfs.stat(Host().proc(pid)).start_ticks / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
