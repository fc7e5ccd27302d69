"""asyncio tasks and Python stacks of a warm target: wall time of a look, and what other tools need for what they show.

Who was stopped meanwhile is seen by the kernel's tracing.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from freezeframe.agentd.host.cpython.interpreter import Interpreter, attach
from freezeframe.agentd.host.cpython.look import look
from freezeframe.agentd.host.cpython.stacks import walk_threads
from freezeframe.agentd.host.target_memory import TargetMemory
from tests.bench.results import record
from tests.bench.stops import stop_meter
from tests.support.children import PROGRAMS, child

pytestmark = [pytest.mark.needs("root", "kernel", "bench"), pytest.mark.timeout(600)]

MACHINE = os.uname().machine


def timed(run: Callable[[], object], times: int) -> float:
    """Median, milliseconds, warm."""
    run()
    spans = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        spans.append(1000.0 * (time.perf_counter() - begin))
    return statistics.median(spans)


@pytest.mark.parametrize(("count", "bar_ms", "times"), [(30, 5.0, 40), (1000, 60.0, 20), (10_000, 800.0, 7)])
def test_tasks_are_walked_in_time_and_nobody_is_stopped(count: int, bar_ms: float, times: int, tmp_path: Path) -> None:
    truth = str(tmp_path / "truth.json")
    with (
        child(sys.executable, str(PROGRAMS / "asyncio_tasks.py"), str(count), "0", truth, "alone") as process,
        stop_meter() as meter,
    ):
        directory = f"/proc/{process.pid}"
        found = []
        before: Interpreter | None = None

        def walk() -> None:
            nonlocal before
            before = attach(directory, TargetMemory(process.pid), MACHINE, before)
            found[:] = look(before, directory, MACHINE, None, limit=20_000).tasks

        spent = timed(walk, times)
        # Until 3.11 wait_for, of which an eighth is, adds a task.
        assert count <= len(found) <= count * 1.2
        assert [task for task in found if task.doubt] == []
        record(
            f"asyncio tasks walked, {count:,}", f"{spent:.1f} ms", f"<= {bar_ms:.0f} ms",
            f"median of {times} looks after the first, at {len(found):,} tasks: edges, locks and what is served too",
        )  # fmt: skip
        tids = frozenset(int(tid) for tid in os.listdir(f"{directory}/task"))
        stopped = sum(event.tid in tids for event in meter.stopped())
        record(f"stops of the target, {count:,} tasks walked", str(stopped), "0", "sched_switch")
        assert stopped == 0
        assert spent <= bar_ms


def test_stacks_beside_py_spy(tmp_path: Path) -> None:
    spy = str(Path(sys.executable).with_name("py-spy"))
    truth = str(tmp_path / "truth.json")
    program = str(PROGRAMS / "python_threads.py")
    with child(sys.executable, program, "50", "0", "-", truth) as process:
        directory = f"/proc/{process.pid}"

        def walk() -> None:
            interpreter = attach(directory, TargetMemory(process.pid), MACHINE)
            assert len(walk_threads(interpreter, directory, MACHINE, None, frames=200, threads=1000)) == 51

        def dump(*options: str) -> Callable[[], object]:
            command = [spy, "dump", "--json", *options, "--pid", str(process.pid)]
            return lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True)

        record("Python stacks of 51 threads, own walker", f"{timed(walk, 20):.1f} ms", "-", "median of 20, no stop")
        ours = "median of 20; no asyncio task is shown"
        record("the same, py-spy --nonblocking", f"{timed(dump('--nonblocking'), 20):.1f} ms", "-", ours)
        record("the same, py-spy", f"{timed(dump(), 20):.1f} ms", "-", "median of 20; stops the target")
