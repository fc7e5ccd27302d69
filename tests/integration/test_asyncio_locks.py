"""asyncio locks of real programs, judged, on every Python at hand."""

from __future__ import annotations

import re

import pytest

from freezeframe.agentd.collectors.snapshot_asyncio_tasks import SNAPSHOT_ASYNCIO_TASKS
from freezeframe.agentd.collectors.snapshot_processes import SNAPSHOT_PROCESSES
from freezeframe.judge.model import Confidence, Meta, Process, Snapshot, Verdict
from freezeframe.judge.verdicts import conclude
from tests.support.children import PROGRAMS, child
from tests.support.pythons import Python, each_python
from tests.support.report import run, target

pytestmark = pytest.mark.needs("root")


def judged(which: Python, scene: str) -> tuple[list[Verdict], Snapshot]:
    with child(which.path, str(PROGRAMS / "asyncio_locks.py"), scene) as process:
        at = [target(process.pid, role=Process.Role.ENGINE_HTTP, python=which.minor)]
        kept = run(SNAPSHOT_ASYNCIO_TASKS, at)
        assert kept.misses == {}
        snapshot = conclude(
            Snapshot(
                meta=Meta(host="h"),
                processes=run(SNAPSHOT_PROCESSES, at).snapshot().processes,
                asyncio_tasks=kept.snapshot().asyncio_tasks,
            )
        )
    return [each for each in snapshot.findings if each.code is Verdict.Code.DEADLOCK], snapshot


@each_python()
@pytest.mark.parametrize(("scene", "names"), [("cycle", {"t0", "t1"}), ("ring", {"t0", "t1", "t2"}), ("again", {"t0"})])
def test_a_cycle_of_asyncio_locks_is_named(python: Python, scene: str, names: set[str]) -> None:
    [verdict], _ = judged(python, scene)
    assert verdict.confidence is Confidence.Level.MEDIUM
    cycle = verdict.evidence[0].text
    assert set(re.findall(r"task (\w+) of", cycle)) == names
    assert cycle.count("waits for the asyncio lock") == len(names)
    behind = [each.text for each in verdict.evidence if "wait for these" in each.text]
    assert ("task behind" in "".join(behind)) == (scene == "cycle")


@each_python()
def test_a_lock_that_a_task_has_while_it_waits_for_who_wants_it(python: Python) -> None:
    [verdict], _ = judged(python, "child")
    assert set(re.findall(r"task (\w+) of", verdict.evidence[0].text)) == {"t0", "child"}


@each_python()
@pytest.mark.parametrize("scene", ["timed", "chain", "bare"])
def test_no_cycle_is_named_where_there_is_none(python: Python, scene: str) -> None:
    found, snapshot = judged(python, scene)
    assert found == []
    waiting = [task for task in snapshot.asyncio_tasks if task.waits_for_lock]
    assert len(waiting) == {"timed": 2, "chain": 2, "bare": 3}[scene]
