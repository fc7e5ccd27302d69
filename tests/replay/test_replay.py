"""Every case judged again: nobody is accused wrongly, and what was told once is told again."""

from __future__ import annotations

import pytest

from tests.replay.cases import Case, cases, judge

CASES = cases()
# Recorded on a machine at ten times its load: nothing is claimed.
UNTOLD = frozenset(
    {
        # Half of the collectors ran out of time.
        "client-pool-of-4/sglang-router/after",
        # A health check was answered in the window: something came out of the engine.
        "scheduler-queue/smg/before",
    }
)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_case(case: Case) -> None:
    judged = judge(case)
    expected = {"exact", "undetermined"} if case.healthy else {"undetermined" if case.name in UNTOLD else "exact"}
    assert judged.how in expected, judged.row() + judged.verdict.summary


def test_there_are_enough() -> None:
    assert len(CASES) >= 60
    assert sum(case.healthy for case in CASES) >= 15
    assert len({case.name for case in CASES}) == len(CASES)
