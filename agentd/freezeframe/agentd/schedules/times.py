"""When a schedule is due: intervals and cron, and what becomes of times that passed unseen. Pure.

Times are seconds since the epoch. Cron expressions are read by cronsim, in the host's local time.
"""

from __future__ import annotations

import math
from datetime import datetime

from cronsim import CronSim, CronSimError

from freezeframe.agentd.schedules.schedule import Schedule

# How late a time may be noticed and still counts as now.
GRACE_S = 30.0
_FIELDS = 5


def check_cron(expression: str) -> str:
    """Say what is wrong with a cron expression; empty when nothing is."""
    # cronsim takes a sixth, of seconds.
    if len(expression.split()) != _FIELDS:
        return "it does not have five fields"
    try:
        next(CronSim(expression, datetime(2026, 1, 1)))  # noqa: DTZ001 - local time, like the rest
    except CronSimError as error:
        return str(error)
    except StopIteration:
        return "it names no day that comes"
    return ""


def following(schedule: Schedule, after: float, ran_at: float | None) -> float:
    """The first time of a schedule after `after`; an interval counts from when it ran last, or from `after`."""
    if schedule.cron:
        # An hour that a clock set back repeats is passed once.
        for moment in CronSim(schedule.cron, datetime.fromtimestamp(after)):  # noqa: DTZ006 - local time
            if (at := moment.timestamp()) > after:
                return at
        return math.inf
    if ran_at is None or ran_at > after:
        return after + schedule.every_s
    return ran_at + schedule.every_s * (math.floor((after - ran_at) / schedule.every_s) + 1)


def missed(schedule: Schedule, now: float, ran_at: float | None) -> bool:
    """Whether a time passed since it ran last while nobody looked: the agent was down, or the host slept."""
    return ran_at is not None and ran_at <= now and following(schedule, ran_at, ran_at) < now - GRACE_S


def first_due(schedule: Schedule, now: float, ran_at: float | None) -> float:
    """When it is due as the agent starts: at once where a time was missed that is to be made up for."""
    if schedule.missed == "once" and missed(schedule, now, ran_at):
        return now
    return following(schedule, now, ran_at)
