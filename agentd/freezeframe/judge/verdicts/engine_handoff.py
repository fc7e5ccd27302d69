"""ENGINE_HANDOFF: an engine's HTTP layer has read requests and its scheduler, a process of its own, has none of them.

Proof: that of ENGINE_HOLDS, and the scheduler's word that it has nothing but the answers in progress: its queues say 0
and are not stale, or it sleeps its idle sleep. The requests are lost or wait between the two, in the tokenizer manager
or on the way through zmq.

Lookalikes: those of ENGINE_HOLDS; an engine whose numbers are not exported, or that runs in one process.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.model import Verdict
from freezeframe.judge.verdicts.engine_holds import keeps, known_inside


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per engine."""
    engines = (engine for engine in facts.engines if known_inside(engine))
    return tuple(v for engine in engines if (v := keeps(facts, engine, Verdict.Code.ENGINE_HANDOFF)) is not None)
