"""Whether a schedule can be: its fields, its cron expression, its condition. Pure."""

from __future__ import annotations

from freezeframe.agentd.schedules import conditions, times
from freezeframe.agentd.schedules.schedule import Schedule, problem
from freezeframe.agentd.schedules.triggers import Trigger


def refusal(schedule: Schedule) -> tuple[str, str]:
    """Give what is wrong with it and what to do; both empty when nothing is."""
    if found := problem(schedule):
        return found, ""
    if schedule.cron and (found := times.check_cron(schedule.cron)):
        hint = "five fields: minute hour day month weekday, such as */10 * * * *"
        return f"cron {schedule.cron[:80]!r}: {found}", hint
    if schedule.when:
        try:
            conditions.parse(schedule.when)
        except conditions.ConditionError as error:
            return f"when: {error}", error.hint
    return "", ""


def trigger_of(schedule: Schedule) -> Trigger:
    """The trigger of a schedule with a condition. Raises ConditionError."""
    condition = conditions.parse(schedule.when)
    return Trigger(
        expression=condition.expression,
        hold_s=schedule.hold_s or condition.hold_s,
        clear_s=schedule.clear_s,
        cool_down_s=schedule.cool_down_s,
    )
