"""Native stacks beside the tools of today: wall time, how long a thread was held by the kernel's tracing, frames found.

Each of ours is a freshly forked process, as a worker is: with what the launcher has warm, and the index of symbols on
disk. Warm is its second look.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from freezeframe.agentd.collectors.snapshot_native_stacks import SNAPSHOT_NATIVE_STACKS, Looks
from freezeframe.agentd.host import Host
from freezeframe.agentd.host.native.machine import MACHINES
from freezeframe.agentd.host.native.warm import warm
from freezeframe.agentd.jobs import Job
from tests.bed.bed import Bed
from tests.bench.gdb import GDB
from tests.bench.results import record
from tests.bench.stops import pause_meter, stop_meter
from tests.support import report
from tests.support.children import child
from tests.support.compiled import rust_program
from tests.support.reports import KeptReport

pytestmark = [
    pytest.mark.needs("root", "kernel", "bpf", "e2e", "rustc", "gdb", "eu-stack", "bench"),
    pytest.mark.timeout(900),
]

RUNS = 12
Row = tuple[float, float, int]
PYSPY = str(Path(sys.executable).with_name("py-spy"))
TOOLS = {
    "gdb": GDB,
    "eu-stack": ("eu-stack", "-p"),
    "py-spy dump --native": (PYSPY, "dump", "--native", "--pid"),
    "py-spy dump": (PYSPY, "dump", "--pid"),
    "py-spy dump --nonblocking": (PYSPY, "dump", "--nonblocking", "--pid"),
    "pystack --native-all": (str(Path(sys.executable).with_name("pystack")), "remote", "--native-all"),
}
FRAME = re.compile(r"^\s*#\d+ |^\s+\((?:C|Python)\) File|^ {4}\S.*\(.+\)$", re.MULTILINE)


@pytest.fixture(scope="module", autouse=True)
def warmed() -> None:
    warm()


def ours(pid: int, host: Host) -> tuple[float, float, int]:
    """Milliseconds of a fresh worker, of its second look, and the frames found."""
    end, theirs = os.pipe()
    if os.fork() == 0:
        try:
            at = report.target(pid)
            job = Job(job_id=1, collector=SNAPSHOT_NATIVE_STACKS.name, targets=(at,), deadline_ms=60_000.0)
            begin = time.perf_counter()
            with ExitStack() as closing:
                looks = Looks(job, host, KeptReport(), MACHINES[os.uname().machine], closing)
                threads = looks.threads(at)
                fresh = (time.perf_counter() - begin) * 1000.0
                again = time.perf_counter()
                looks.threads(at)
                warm_ms = (time.perf_counter() - again) * 1000.0
            os.write(theirs, f"{fresh} {warm_ms} {sum(len(thread.frames) for thread in threads)}".encode())
        finally:
            os._exit(0)
    os.close(theirs)
    with open(end) as stream:
        fresh, warm_ms, frames = stream.read().split()
    os.wait()
    return float(fresh), float(warm_ms), int(frames)


def beside(name: str, pid: int, bar_ms: float, folder: Path, *, times_gdb: float) -> None:
    host = Host(state_dir=str(folder))
    tids = frozenset(map(int, os.listdir(f"/proc/{pid}/task")))
    with stop_meter() as meter, pause_meter(tids) as pauses:
        ours(pid, host)
        looks = [ours(pid, host) for _ in range(RUNS)]
        stopped, held = sum(event.tid in tids for event in meter.stopped()), pauses.longest_ms()
        fresh, median = (statistics.median(look[at] for look in looks) for at in (0, 1))
        frames = looks[-1][2]
        others = {}
        for tool, command in TOOLS.items():
            pauses.clear()
            at = time.perf_counter()
            done = subprocess.run([*command, str(pid)], capture_output=True, text=True, timeout=120, check=False)
            wall = (time.perf_counter() - at) * 1000.0
            others[tool] = (wall, pauses.longest_ms(), len(FRAME.findall(done.stdout)))
    record(
        f"native stacks of {name}, warm, median", f"{median:.1f} ms", f"<= {bar_ms:.0f} ms",
        f"second look of {RUNS} workers, {frames} frames, pause {held:.0f} ms, threads stopped: {stopped}",
    )  # fmt: skip
    record(f"native stacks of {name}, fresh worker, median", f"{fresh:.1f} ms", "-", "with the first look's set-up")
    for tool, (wall, pause, found) in others.items():
        record(
            f"native stacks of {name}: {tool}",
            f"{wall:.0f} ms",
            f"gdb {times_gdb:.0f} times ours" if tool == "gdb" else "-",
            f"{found} frames, pause {pause:.0f} ms",
        )
    assert (stopped, held) == (0, 0.0)
    # The meter sees what gdb does.
    assert others["gdb"][1] > 0
    assert others["gdb"][0] >= times_gdb * median
    assert median <= bar_ms


@contextlib.contextmanager
def parked(threads: int) -> Iterator[int]:
    with child(rust_program("parked", "-C", "symbol-mangling-version=v0"), str(threads)) as process:
        time.sleep(0.5)
        yield process.pid


def test_the_router(tmp_path: Path) -> None:
    with Bed.start(wedge="router-dual-leg") as bed:
        bed.wait_wedged(settled=True)
        beside("the router", bed.pids.router, 5.0, tmp_path, times_gdb=10.0)


def test_512_threads(tmp_path: Path) -> None:
    with parked(512) as pid:
        beside("512 threads", pid, 150.0, tmp_path, times_gdb=3.0)
