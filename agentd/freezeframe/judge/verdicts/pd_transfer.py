"""PD_TRANSFER: requests of a disaggregated pair are prefilled, and their keys and values do not arrive.

Proof, with two looks: the same requests have been owed by both engines for LONG_MS or longer and no byte went to any of
their clients; each scheduler can run, says after these requests came that it runs nothing and lets nothing wait, and
counts no token; prefill's inflight queue holds as many, and so does decode's transfer queue.
HIGH when both told so within LOAD_STALE_MS and tokens are counted; else MEDIUM.
Both schedulers are named: a transfer that stands looks the same from a sender that does not send and from a receiver
that does not look (NIXL's completions are taken by the scheduler that polls for them).

Lookalikes: a transfer that takes long, whose requests are young; a prefill that is still computing, which says that it
runs or waits; a prefill that has ended (PROCESS_DEAD, ROUTER_DUAL_LEG); decode's transfer queue alone, which also holds
what prefill has not begun.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.model import Verdict
from freezeframe.judge.verdicts._pair import between, standing_pairs, told


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per router."""
    found = []
    for pair in standing_pairs(facts):
        sides = [[(engine, engine.gauges.transfer) for engine in leg.engines] for leg in (pair.prefill, pair.decode)]
        if min(sum(number or 0 for _, number in side) for side in sides) < pair.enough:
            continue
        queues = [told(engine, number, "transfer") for side in sides for engine, number in side]
        found.append(between(facts, pair, Verdict.Code.PD_TRANSFER, what="the transfer", queues=queues))
    return tuple(found)
