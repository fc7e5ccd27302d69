"""What the waiting queue of an engine's scheduler says, for the verdicts about that queue."""

from __future__ import annotations

from collections.abc import Sequence

from freezeframe.judge.correlate.facts import Connection, Engine, Facts
from freezeframe.judge.model import Evidence
from freezeframe.judge.verdicts._steps import ask
from freezeframe.judge.verdicts._words import evidence, oldest


def keeps_waiting(engine: Engine, owed: Sequence[Connection]) -> bool:
    """Whether its numbers say that requests wait, none runs and none progresses.

    A number of a known age that was written before the oldest of `owed` came is about other requests.
    """
    gauges = engine.gauges
    if not gauges.waiting or gauges.running or gauges.tokens_delta or engine.asleep:
        return False
    return gauges.told_since(oldest(owed))


def queue_evidence(engine: Engine) -> Evidence:
    gauges = engine.gauges
    text = f"its queue says: {gauges.waiting:.0f} waiting, 0 running"
    if gauges.tokens_delta is not None:
        text += ", no token counted in the window"
    return evidence(text, *(f"metrics[{index}]" for index in gauges.indexes))


def ask_for_room(facts: Facts, engine: Engine) -> str:
    """The next step: whether there is room for what waits."""
    why = "free KV cache, against what the first waiting request needs"
    return ask(facts, engine.pid, "/metrics", why, pattern="usage|used_tokens|waiting|queue|retract")
