"""Locks of real processes, judged: what the agent's rule makes of what its collectors see."""

from __future__ import annotations

from freezeframe.agentd.collectors.snapshot_locks import SNAPSHOT_LOCKS
from freezeframe.agentd.collectors.snapshot_processes import SNAPSHOT_PROCESSES
from freezeframe.judge.model import Lock, Meta, Snapshot, Verdict
from freezeframe.judge.verdicts import conclude
from tests.support import report
from tests.support.reports import KeptReport


def deadlocks_of(*pids: int) -> tuple[list[Verdict], tuple[Lock, ...], KeptReport]:
    """Findings of that kind, the locks, and what the collector said, of these processes."""
    targets = [report.target(pid) for pid in pids]
    processes = report.run(SNAPSHOT_PROCESSES, targets)
    kept = report.run(SNAPSHOT_LOCKS, targets)
    locks = kept.gathered.records("locks")
    snapshot = conclude(
        Snapshot(meta=Meta(host="h"), processes=processes.gathered.records("processes"), locks=tuple(locks))
    )
    found = [verdict for verdict in snapshot.findings if verdict.code is Verdict.Code.DEADLOCK]
    return found, tuple(locks), kept
