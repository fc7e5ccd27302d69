"""PD_BOOTSTRAP: requests of a disaggregated pair stand in the handshake that comes before prefill.

Proof, with two looks: the same requests have been owed by both engines for LONG_MS or longer and no byte went to any of
their clients; each scheduler can run, says after these requests came that it runs nothing and lets nothing wait, and
counts no token; prefill's bootstrap queue holds as many, and decode has as many in its queues of disaggregation.
HIGH when both told so within LOAD_STALE_MS and tokens are counted; else MEDIUM.
Both schedulers are named: which of them lost the other cannot be told from their queues.

Lookalikes: a decode leg that is not there (ROUTER_DUAL_LEG); an HTTP layer of one side that keeps them, whose
scheduler has none (ENGINE_HANDOFF); a decode that waits for room while it runs others; a gauge that is frozen since a
batch before, as SGLang's are while requests stand here: it has to be younger than they are; rooms left over from
requests that are gone, which are fewer than those that wait.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.model import Verdict
from freezeframe.judge.verdicts._pair import between, standing_pairs, told


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per router."""
    found = []
    for pair in standing_pairs(facts):
        first = [(engine, engine.gauges.bootstrap) for engine in pair.prefill.engines]
        second = [(engine, engine.gauges.handover) for engine in pair.decode.engines]
        if min(sum(number or 0 for _, number in side) for side in (first, second)) < pair.enough:
            continue
        queues = [told(engine, number, "its bootstrap queue") for engine, number in first]
        queues += [told(engine, number, "its queues of disaggregation") for engine, number in second]
        found.append(between(facts, pair, Verdict.Code.PD_BOOTSTRAP, what="the handshake", queues=queues))
    return tuple(found)
