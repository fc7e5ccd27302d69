from __future__ import annotations

from freezeframe.agentd.gathered import Gathered, merge_outcomes, overlay
from freezeframe.judge.model import Host, LogFinding, Metric, Outcome, Process, PythonThread, Snapshot, Socket


def test_a_second_look_replaces_the_first() -> None:
    gathered = Gathered()
    gathered.add(Snapshot(sockets=(Socket(inode=5, recv_queue=1.0), Socket(inode=6))))
    gathered.add(Snapshot(sockets=(Socket(inode=5, recv_queue=1.0, recv_queue_after=2.0),)))
    assert gathered.snapshot().sockets == (Socket(inode=5, recv_queue=1.0, recv_queue_after=2.0), Socket(inode=6))


def test_of_a_process_each_collector_knows_a_part() -> None:
    gathered = Gathered()
    gathered.add(Snapshot(processes=(Process(pid=7, start_ticks=9.0, comm="python3"),)))
    gathered.add(Snapshot(processes=(Process(pid=7, title="sglang::router"),)))
    gathered.add(Snapshot(processes=(Process(pid=7, start_ticks=9.0, state="T"),)))
    assert gathered.snapshot().processes == (
        Process(pid=7, start_ticks=9.0, comm="python3", title="sglang::router", state="T"),
    )


def test_nothing_of_an_old_process_is_true_of_a_new_one_with_its_pid() -> None:
    old = Process(pid=7, start_ticks=9.0, title="sglang::router")
    new = Process(pid=7, start_ticks=10.0, comm="sh")
    assert overlay(old, new) == new


def test_records_of_a_process_that_ended_are_dropped_and_it_is_marked() -> None:
    gathered = Gathered()
    gathered.add(
        Snapshot(
            processes=(Process(pid=7), Process(pid=8)),
            python_threads=(PythonThread(pid=7), PythonThread(pid=8)),
            sockets=(Socket(inode=1, pid=7), Socket(inode=2)),
            metrics=(Metric(pid=8, name="a"),),
            host=Host(cpus=2),
        )
    )
    assert gathered.snapshot(ended=(7,)) == Snapshot(
        processes=(Process(pid=7, exited=True), Process(pid=8)),
        python_threads=(PythonThread(pid=8),),
        sockets=(Socket(inode=2),),
        metrics=(Metric(pid=8, name="a"),),
        host=Host(cpus=2),
    )


def test_kinds_without_identity_are_kept_as_they_come() -> None:
    gathered = Gathered()
    for count in (1, 2):
        gathered.add(Snapshot(log_findings=(LogFinding(pid=1, pattern="x", count=count),)))
        gathered.add(Snapshot(outcomes=(Outcome(collector="x"),)))
    assert [finding.count for finding in gathered.records("log_findings")] == [2]
    assert len(gathered.records("outcomes")) == 2


def test_one_outcome_of_several_runs_is_the_worst_with_all_that_was_said() -> None:
    status = Outcome.Status
    runs = (
        Outcome(collector="x", status=status.OK, duration_ms=5.0, items=3),
        Outcome(
            collector="x", status=status.TIMED_OUT, detail="reading 7", hint="h", duration_ms=9.0, pids_missed=(7,)
        ),
        Outcome(collector="x", status=status.SKIPPED, detail="nothing to do"),
    )
    assert merge_outcomes("x", runs) == Outcome(
        collector="x", status=status.TIMED_OUT, detail="reading 7", hint="h", duration_ms=9.0, items=3, pids_missed=(7,)
    )
    assert merge_outcomes("x", (runs[0], runs[2])).status is status.OK
    assert merge_outcomes("x", (runs[2],)).detail == "nothing to do"
