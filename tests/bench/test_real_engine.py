"""The same evidence of real SGLang on the CPU, by snap and by gdb: after `make engines` has installed it."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import pytest

from tests.bench.gdb import stacks_ms
from tests.bench.results import record
from tests.engines.products import PRODUCTS
from tests.engines.stack import CLIENTS, running
from tests.engines.wedges import WEDGES
from tests.support.command import freezeframe
from tests.support.daemon import running_daemon

pytestmark = [pytest.mark.needs("root", "kernel", "e2e", "bench", "engines", "gdb"), pytest.mark.timeout(900)]

RUNS = 10


def test_snap_of_real_sglang_has_stacks_and_tasks_in_a_tenth_of_what_gdb_takes_for_the_stacks(tmp_path: Path) -> None:
    (wedge,) = (each for each in WEDGES if each.name == "scheduler stopped" and "sglang" in each.products)
    with running_daemon() as agent, running(PRODUCTS["sglang"], pair=False) as stack:
        stack.up()
        stack.harness(do="run")
        stack.wait_served()
        with wedge.strike(stack):
            stack.wait_still(wedge.still_s)
            pids = {stack.parts[part] for part in ("router", "engine.http", "engine.scheduler", "engine.detokenizer")}
            own = [word for pid in stack.pids() for word in ("-p", str(pid))]
            command = ("--output", "json", "snap", "--window", "0", *own, agent.address)
            ours = []
            for _ in range(RUNS):
                begin = time.perf_counter()
                done = freezeframe(*command, cwd=tmp_path)
                ours.append(1000.0 * (time.perf_counter() - begin))
                snapshot = json.loads(done.stdout)
                assert pids <= {thread["pid"] for thread in snapshot["native_threads"] if thread["frames"]}
                tasks = [task for task in snapshot["asyncio_tasks"] if task["pid"] == stack.parts["engine.http"]]
                assert len({task["request_ref"] for task in tasks if task.get("request_ref")}) == CLIENTS
            gdb = [stacks_ms(pids) for _ in range(3)]
    snap_ms, gdb_ms = statistics.median(ours), statistics.median(gdb)
    record(
        "the same of real SGLang on the CPU, its scheduler stopped", f"{snap_ms:.0f} ms", "<= 1000 ms, gdb 10 times",
        f"median of {RUNS}; gdb of the same {len(pids)} processes, one after the other, without tasks: "
        f"{gdb_ms:.0f} ms, {gdb_ms / snap_ms:.1f} times",
    )  # fmt: skip
    assert gdb_ms >= 10.0 * snap_ms
