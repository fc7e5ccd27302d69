"""DECODE_STALLED: a batch that a decode engine's scheduler runs, or one of answers that have begun, does not end.

Proof, with two looks:
- the main thread of the engine's scheduler, or of a worker of it, is in one place of one batch at both looks, or the
  scheduler said of late that requests run and does not rest; and it counted no token in the window;
- requests have waited for LONG_MS or longer: owed by its HTTP process, or answers that have begun and are quiet for
  longer than the HTTP server keeps an idle connection; some client has as many open;
- all processes of the engine can run.
Of an engine that does both, answers that have begun decide: without any it is PREFILL_STALLED. HIGH by the stack of
the batch; else MEDIUM.

Lookalikes: a long prefill, which is over before LONG_MS or counts tokens; a slow stream, whose bytes move; a gauge that
was written before.
"""

from __future__ import annotations

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.model import Verdict
from freezeframe.judge.verdicts._batch import stalled_batches


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per engine."""
    return stalled_batches(facts, Verdict.Code.DECODE_STALLED)
