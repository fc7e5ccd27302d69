"""Ranks of an engine as real processes with SGLang's names, judged by what the agent's collectors see of them."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from freezeframe.agentd.collectors.read_command_lines import READ_COMMAND_LINES
from freezeframe.agentd.collectors.snapshot_processes import SNAPSHOT_PROCESSES
from freezeframe.agentd.collectors.snapshot_python_stacks import SNAPSHOT_PYTHON_STACKS
from freezeframe.agentd.host import Host, procfs
from freezeframe.judge.correlate.names import find_named
from freezeframe.judge.model import Process, Snapshot, Verdict
from freezeframe.judge.verdicts import conclude
from tests.support import report
from tests.support.ranks import ranks
from tests.support.scene import Engine, Scene

pytestmark = pytest.mark.needs("root")

Code = Verdict.Code
VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


def judged(pids: tuple[int, ...], **gauges: float) -> Snapshot:
    """What is proved of these ranks while 30 old requests are owed by their HTTP process."""
    scene = Scene()
    harness, engine = scene.client(), scene.engine()
    scene.owed(harness, engine, 30, age_ms=41_000)
    scene.gauges(engine, **gauges)
    targets = [report.target(pid, role=Process.Role.SCHEDULER, python=VERSION) for pid in pids]
    named = {p.pid: p for p in report.run(READ_COMMAND_LINES, targets).gathered.records("processes")}
    seen = report.run(SNAPSHOT_PROCESSES, targets, window_ms=1000.0).gathered.records("processes")
    stacks = report.run(SNAPSHOT_PYTHON_STACKS, targets, window_ms=1000.0).gathered.records("python_threads")
    made = scene.snapshot()
    return conclude(
        replace(
            made,
            processes=(
                *(p for p in made.processes if p.pid != engine.scheduler),
                *(_in(engine, p, named[p.pid].title) for p in seen),
            ),
            python_threads=(*made.python_threads, *stacks),
        )
    )


def _in(engine: Engine, process: Process, title: str) -> Process:
    named = find_named(replace(process, title=title))
    assert named is not None
    assert named.role is Process.Role.SCHEDULER
    return replace(
        process, role=named.role, product=named.product, rank=named.rank, engine_pid=engine.http, python=VERSION
    )


def codes(snapshot: Snapshot) -> list[Verdict.Code]:
    return [finding.code for finding in snapshot.findings]


def test_ranks_that_diverge_are_named_and_forgotten_when_they_go_on() -> None:
    with ranks(4) as engine:
        engine.take("diverge")
        engine.asleep(*engine.pids)
        snapshot = judged(engine.pids)
        verdict = snapshot.verdict
        assert (verdict.code, verdict.holder_pids) == (Code.RANKS_DIVERGED, (engine.pids[3],))
        assert [(rank.rank, rank.phase, rank.frame, rank.minority) for rank in snapshot.ranks] == [
            ("TP3", "all_reduce", "all_reduce under can_terminate_prefetch", True),
            *((f"TP{n}", "broadcast", "broadcast under _broadcast_reqs_across_ranks", False) for n in range(3)),
        ]
        engine.take("idle")
        engine.asleep(*engine.pids[1:])
        assert Code.RANKS_DIVERGED not in codes(judged(engine.pids))


def test_lookalike_idle_ranks_that_wait_for_the_first() -> None:
    with ranks(3) as engine:
        engine.take("idle")
        engine.asleep(*engine.pids[1:])
        snapshot = judged(engine.pids)
        assert codes(snapshot) != [Code.RANKS_DIVERGED]
        assert [(rank.rank, rank.phase) for rank in snapshot.ranks] == [
            ("TP0", "idle loop"),
            ("TP1", "broadcast"),
            ("TP2", "broadcast"),
        ]


def test_lookalike_ranks_that_wait_for_one_that_computes() -> None:
    with ranks(3) as engine:
        engine.take("straggle")
        engine.asleep(*engine.pids[1:])
        assert {Code.RANKS_DIVERGED, Code.SCHEDULER_LIVELOCK}.isdisjoint(codes(judged(engine.pids)))


def test_a_scheduler_in_a_livelock_and_after_it() -> None:
    with ranks(1) as engine:
        engine.take("livelock")

        def goes_round() -> bool:
            return procfs.stat(Host().proc(engine.pids[0])).state == "R"

        report.until(goes_round)
        snapshot = judged(engine.pids, waiting=30)
        assert (snapshot.verdict.code, snapshot.verdict.holder_pids) == (Code.SCHEDULER_LIVELOCK, engine.pids)
        assert [(rank.phase, rank.phase_after) for rank in snapshot.ranks] == [("admission", "admission")]
        # The lookalike: it burns a core by design, and the gauge is of before.
        engine.take("spin")
        report.until(goes_round)
        assert Code.SCHEDULER_LIVELOCK not in codes(judged(engine.pids, waiting=30))
