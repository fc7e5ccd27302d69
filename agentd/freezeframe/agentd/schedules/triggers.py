"""When a condition makes a capture happen: it holds for long enough, it had cleared before, and not too soon. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from freezeframe.agentd.capture import Urgency
from freezeframe.agentd.schedules import conditions

# Seconds after the trigger at which it is looked: three looks tell stuck from slow.
LOOKS_S = (0.0, 5.0, 30.0)
# Values that tell of what is there for a moment only.
_PASSING = frozenset({"exits"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A condition with its times, seconds."""

    expression: str
    # It has to hold for so long.
    hold_s: float = 0.0
    # It has to be false for so long before it can fire again.
    clear_s: float = 10.0
    # It fires at most so often.
    cool_down_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is remembered of a trigger from one second to the next; times are monotonic seconds."""

    # Since when the condition holds, and since when it does not; None while it is the other way, or not known.
    true_since: float | None = None
    false_since: float | None = None
    # False from firing until the condition has been false for long enough.
    armed: bool = True
    fired_at: float | None = None


def urgency(trigger: Trigger, look: int) -> Urgency:
    """How soon a look, counted from 1, has to be taken where several wait."""
    if look > 1:
        return Urgency.PATIENT
    return Urgency.PASSING if _PASSING & conditions.check(trigger.expression) else Urgency.FIRST_LOOK


def step(trigger: Trigger, state: State, values: Mapping[str, float], now: float) -> tuple[State, bool]:
    """Take the values of one second; gives the new state and whether the trigger fires now.

    While a value is not known, neither the time for which it holds nor the time for which it is clear goes on.
    """
    truth = conditions.holds(trigger.expression, values)
    if truth is None:
        return replace(state, true_since=None, false_since=None), False
    if not truth:
        since = now if state.false_since is None else state.false_since
        armed = state.armed or now - since >= trigger.clear_s
        return replace(state, true_since=None, false_since=since, armed=armed), False
    since = now if state.true_since is None else state.true_since
    cool = state.fired_at is None or now - state.fired_at >= trigger.cool_down_s
    if state.armed and cool and now - since >= trigger.hold_s:
        return State(true_since=since, armed=False, fired_at=now), True
    return replace(state, true_since=since, false_since=None), False
