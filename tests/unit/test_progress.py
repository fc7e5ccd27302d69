from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.frames import Done, End, Frame, Missed, Partial
from freezeframe.agentd.jobs import Job, Target
from freezeframe.agentd.progress import Progress
from freezeframe.judge.model import Outcome

STATUS = Outcome.Status


def progress(*pids: int) -> Progress:
    return Progress(Job(job_id=1, collector="look", targets=tuple(Target(pid=pid, start_ticks=1) for pid in pids)))


def end(status: STATUS = STATUS.OK, detail: str = "", hint: str = "") -> End:
    return End(status=status, detail=detail, hint=hint, duration_ms=1.0)


@pytest.mark.parametrize(
    ("frames", "parts", "expected"),
    [
        ([Done(pid=1), Done(pid=2), end()], 2, (STATUS.OK, "", ())),
        ([end()], 0, (STATUS.OK, "", ())),
        ([Done(pid=1), Missed(pid=2, why="gone"), end()], 1, (STATUS.PARTIAL, "pid 2: gone", (2,))),
        ([Partial(detail="cut", hint="more"), end()], 1, (STATUS.PARTIAL, "cut", ())),
        ([end(STATUS.UNAVAILABLE, "no py-spy")], 0, (STATUS.UNAVAILABLE, "no py-spy", (1, 2))),
        ([end(STATUS.SKIPPED, "nothing")], 0, (STATUS.SKIPPED, "nothing", (1, 2))),
        ([end(STATUS.FAILED, "KeyError")], 0, (STATUS.FAILED, "KeyError", (1, 2))),
        ([Done(pid=1), end(STATUS.FAILED, "KeyError")], 1, (STATUS.PARTIAL, "KeyError", (2,))),
    ],
)
def test_outcomes(frames: list[Frame], parts: int, expected: tuple[object, ...]) -> None:
    it = progress(1, 2)
    it.parts = parts
    for frame in frames:
        it.take(frame)
    outcome = it.outcome("look", 5.0)
    assert (outcome.status, outcome.detail, outcome.pids_missed) == expected


def test_with_nothing_kept_the_worst_names_the_outcome() -> None:
    it = progress(1, 2, 3)
    it.leave_out(1, "quarantined", STATUS.SKIPPED)
    assert it.outcome("look", 1.0).status is STATUS.SKIPPED
    it.leave_out(2, "stuck", STATUS.TIMED_OUT)
    assert it.outcome("look", 1.0).status is STATUS.TIMED_OUT
    it.problem("the worker crashed", STATUS.FAILED)
    outcome = it.outcome("look", 1.0)
    assert (outcome.status, outcome.pids_missed) == (STATUS.FAILED, (1, 2, 3))
    assert outcome.detail == "the worker crashed; pid 1: quarantined; pid 2: stuck"
    it.parts = 1
    assert it.outcome("look", 1.0).status is STATUS.PARTIAL


def test_a_target_of_somebody_else_says_what_grants_it() -> None:
    it = progress(1, 2)
    it.take(Missed(pid=2, why="reading it: Permission denied"))
    it.take(end())
    assert it.outcome("look", 1.0).hint == "run the agent as root or grant CAP_SYS_PTRACE"
    it.take(Partial(detail="cut", hint="more"))
    assert it.outcome("look", 1.0).hint == "more"


def test_many_misses_are_counted_not_listed() -> None:
    it = progress(*range(1, 101))
    for pid in range(1, 101):
        it.take(Missed(pid=pid, why="gone"))
    it.take(end())
    assert it.outcome("look", 1.0).detail == "pid 1: gone; pid 2: gone; pid 3: gone; and 97 more"


def test_pids_that_were_not_asked_for_do_not_count() -> None:
    it = progress(1)
    it.take(Done(pid=2))
    it.take(Missed(pid=3, why="x"))
    it.take(end())
    outcome = it.outcome("look", 1.0)
    assert (outcome.status, outcome.pids_missed) == (STATUS.OK, ())


@pytest.mark.parametrize(
    ("doing", "named"),
    [
        ("reading /proc/4711/cmdline", (4711,)),
        ("reading /proc/4711/task/4712/stat", (4711, 4712)),
        ("running py-spy on pid 4712", (4712,)),
        ("reading /proc/47110/cmdline", ()),
        ("waiting 1000 ms for the second look", ()),
        ("9" * 5000 + " 4711", (4711,)),
    ],
)
def test_a_sentence_names_targets(doing: str, named: tuple[int, ...]) -> None:
    assert progress(4711, 4712).named_in(doing) == named


@given(st.text())
def test_any_text_names_targets_or_none(doing: str) -> None:
    assert set(progress(1, 2).named_in(doing)) <= {1, 2}
