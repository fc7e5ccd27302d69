"""Knowing less may cost confidence or the verdict; it never accuses somebody else, nor calls a wedge health."""

from __future__ import annotations

import pytest

from freezeframe.judge.model import Verdict
from freezeframe.judge.verdicts import conclude
from tests.replay.cases import QUIET, Case, Judged, cases
from tests.replay.mutations import mutations

Code = Verdict.Code
# What less evidence may leave of a code: a more general one of the same holder.
GENERIC: dict[Code, frozenset[Code]] = {
    Code.ROUTER_QUEUE: frozenset({Code.ROUTER_HOLDS}),
    Code.ROUTER_DUAL_LEG: frozenset({Code.ROUTER_HOLDS}),
    Code.ENGINE_HANDOFF: frozenset({Code.ENGINE_HOLDS}),
    # Where it goes round its stack tells; that the queue stands, its numbers.
    Code.SCHEDULER_LIVELOCK: frozenset({Code.SCHEDULER_QUEUE}),
    # One look shows that the loop does not turn, not why.
    Code.HOST_STARVED: frozenset({Code.ENGINE_HTTP_BLOCKED, Code.ENGINE_NOT_ACCEPTING}),
    # Every request is refused at once, so that none is in flight: only the router's own numbers tell.
    Code.ROUTER_NO_WORKERS: frozenset({Code.IDLE, Code.NOT_STUCK}),
}
CASES = cases()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_with_less_evidence(case: Case) -> None:
    snapshot = case.load()
    whole = conclude(snapshot).verdict
    assert whole is not None
    faults = []
    for name, mutate in mutations(snapshot).items():
        verdict = conclude(mutate(snapshot)).verdict
        assert verdict is not None
        # Where the whole was not enough, a part may still say what is true.
        true = Judged(case=case, verdict=verdict).how == "exact"
        if not true and not allowed(whole, verdict, healthy=case.healthy):
            faults.append(f"{name}: {verdict.code.name} {verdict.holder_pids}: {verdict.summary}")
    assert not faults, f"{whole.code.name} {whole.holder_pids}\n" + "\n".join(faults)


def allowed(whole: Verdict, less: Verdict, *, healthy: bool) -> bool:
    if healthy:
        return less.code in QUIET
    if less.code is Code.UNDETERMINED:
        return True
    if less.code is not whole.code and less.code not in GENERIC.get(whole.code, frozenset()):
        return False
    if less.code in QUIET:
        return True
    if less.confidence.value > whole.confidence.value or (whole.hop and less.hop not in whole.hop):
        return False
    less_held, held = set(less.holder_pids), set(whole.holder_pids)
    return less_held == held or (less.code is not whole.code and bool(less_held) and less_held < held)
