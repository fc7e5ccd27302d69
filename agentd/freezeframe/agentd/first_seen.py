"""When a capture first saw each asyncio task: the only age that CPython leaves of it, and a lower bound.

A task is the same as long as its process, its address, its coroutine and its name are. Those that a capture does not
see any more are forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from freezeframe.judge.model import AsyncioTask, Process

_MOST = 100_000

_Key = tuple[int, float, str, str, str]


class FirstSeen:
    """Remembers, from one capture to the next."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self._since: dict[_Key, float] = {}

    def date(self, tasks: Sequence[AsyncioTask], processes: Sequence[Process], now: float) -> tuple[AsyncioTask, ...]:
        """Give the tasks with the time since they were first seen; `now` in seconds, never set back.

        `processes` are all of the host: of those that have ended, and of tasks that have, nothing is kept.
        """
        looked_at = {task.pid for task in tasks}
        started = {process.pid: process.start_ticks for process in processes}
        found, current = [], {}
        for task in tasks:
            key = (task.pid, started.get(task.pid, 0.0), task.address, task.coroutine, task.name)
            since = current[key] = self._since.get(key, now)
            found.append(replace(task, first_seen_age_ms=(now - since) * 1000.0))
        kept = {key: since for key, since in self._since.items() if key[0] not in looked_at and key[0] in started}
        kept.update(current)
        if len(kept) > _MOST:
            kept = dict(sorted(kept.items(), key=lambda item: item[1])[:_MOST])
        self._since = kept
        return tuple(found)
