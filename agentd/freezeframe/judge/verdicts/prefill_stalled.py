"""PREFILL_STALLED: a batch that a scheduler runs does not end, and none of its answers has begun.

Proof as DECODE_STALLED, of a prefill engine, or of one that does both while no answer is under way there.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.model import Verdict
from freezeframe.judge.verdicts._batch import stalled_batches


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per engine."""
    return stalled_batches(facts, Verdict.Code.PREFILL_STALLED)
