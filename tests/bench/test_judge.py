"""Correlation and verdict together: over a bed's snapshot, and over a host with 10,000 threads and 20,000 sockets."""

from __future__ import annotations

import statistics
import time

import pytest

from freezeframe.judge.model import PythonThread, Snapshot, Thread, Verdict
from freezeframe.judge.verdicts import conclude
from tests.bench.results import record
from tests.replay.cases import recorded
from tests.support.scene import SCHEDULER_LOOP, Scene

pytestmark = [pytest.mark.needs("bench")]

RUNS = 5
ENGINES, CONNECTIONS, THREADS = 64, 10_000, 10_000


def took_ms(snapshot: Snapshot) -> float:
    runs = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        conclude(snapshot)
        runs.append(1000.0 * (time.perf_counter() - begin))
    return statistics.median(runs)


def test_of_a_bed() -> None:
    took = [took_ms(case.load()) for case in recorded()]
    record("correlation and verdict, bed", f"{max(took):.0f} ms", "<= 50 ms", f"slowest of {len(took)} recorded cases")
    assert max(took) <= 50


def test_of_a_large_host() -> None:
    scene = Scene()
    harness, router = scene.client(), scene.router()
    engines = [scene.engine() for _ in range(ENGINES)]
    # 10,000 connections with both ends: as many from the harness as to the engines.
    scene.owed(harness, router, CONNECTIONS // 2, age_ms=20_000)
    for engine in engines:
        scene.owed(router, engine, CONNECTIONS // 2 // ENGINES, age_ms=20_000)
        scene.gauges(engine)
        more = tuple(Thread(tid=1_000_000 + i, state="S", state_after="S") for i in range(THREADS // ENGINES))
        main = scene.processes[engine.scheduler].threads
        scene.change(engine.scheduler, threads=(*main, *more))
        scene.python_threads += [
            PythonThread(pid=engine.scheduler, tid=t.tid, name=f"worker-{t.tid}", frames=SCHEDULER_LOOP) for t in more
        ]
    snapshot = scene.snapshot()
    assert len(snapshot.sockets) > 19_500
    assert len(snapshot.python_threads) > 9_900
    took = took_ms(snapshot)
    what = f"{len(snapshot.sockets)} sockets, {len(snapshot.python_threads)} threads, {ENGINES} engines"
    record("correlation and verdict, large host", f"{took:.0f} ms", "<= 1000 ms", what)
    verdict = conclude(snapshot).verdict
    assert verdict is not None
    assert verdict.code is Verdict.Code.ENGINE_HANDOFF
    assert took <= 1000
