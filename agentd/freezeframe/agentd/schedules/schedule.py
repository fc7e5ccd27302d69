"""One schedule: when, what, how much of it is kept. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
MISSED = ("skip", "once")
_LONGEST_S = 366 * 86400.0
_MOST = 1_000_000
_LONGEST_CRON = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Captures that happen by themselves. Exactly one of `every_s`, `cron` and `when` is set."""

    # What its snapshots are listed under.
    name: str
    # Every so many seconds.
    every_s: float = 0.0
    # Minute, hour, day, month, weekday: "*/10 * * * *", in local time.
    cron: str = ""
    # A condition: "stuck-for=30s".
    when: str = ""
    # A time is put off by up to so much, at random, so that a fleet does not capture at once.
    jitter_s: float = 0.0
    # A time that passed while the agent was down: "skip" it, or capture "once" at its start.
    missed: str = "skip"
    # A condition has to hold for so long; 0 = as long as its short form says.
    hold_s: float = 0.0
    # It has to be false for so long before it can fire again.
    clear_s: float = 10.0
    # It fires at most so often.
    cool_down_s: float = 300.0
    # Unpinned snapshots of this schedule that are kept; 0 = as many as the store takes.
    keep: int = 0
    # Between the two looks of each capture.
    window_s: float = 1.0
    # For all of each capture.
    deadline_s: float = 6.0
    # Names of collectors: these alone.
    only: tuple[str, ...] = ()
    # Names of collectors that are left out.
    skip: tuple[str, ...] = ()
    # Kept with each snapshot.
    note: str = ""


def problem(schedule: Schedule) -> str:
    """Say what is wrong with its fields; empty when nothing is. What they mean together is checked in `checks`."""
    numbers = ("every_s", "jitter_s", "hold_s", "clear_s", "cool_down_s", "window_s", "deadline_s")
    out_of_range = [name for name in numbers if not 0 <= getattr(schedule, name) <= _LONGEST_S]
    rules = (
        (
            NAME.fullmatch(schedule.name) is not None,
            f"name {schedule.name[:80]!r} must be up to 64 letters, digits, dots, dashes or underscores",
        ),
        (
            sum((bool(schedule.every_s), bool(schedule.cron), bool(schedule.when))) == 1,
            "exactly one of every, cron and when is needed",
        ),
        (len(schedule.cron) <= _LONGEST_CRON, f"cron must have at most {_LONGEST_CRON} characters"),
        (not out_of_range, f"{''.join(out_of_range[:1])} must be a number from 0 to {_LONGEST_S:.0f}"),
        (not schedule.every_s or schedule.every_s >= 1, "every_s must be 1 or more"),
        (not schedule.every_s or schedule.jitter_s < schedule.every_s, "jitter_s must be less than every_s"),
        (schedule.deadline_s > schedule.window_s, "deadline_s must be more than window_s"),
        (not schedule.only or not set(schedule.only) <= set(schedule.skip), "only and skip leave no collector"),
        (schedule.missed in MISSED, f"missed must be one of {', '.join(MISSED)}"),
        (0 <= schedule.keep <= _MOST, f"keep must be a whole number from 0 to {_MOST}"),
    )
    return next((sentence for holds, sentence in rules if not holds), "")
