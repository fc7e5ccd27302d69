from __future__ import annotations

from freezeframe.agentd.first_seen import FirstSeen
from freezeframe.judge.model import AsyncioTask, Process

HOST = (Process(pid=1, start_ticks=10.0), Process(pid=2, start_ticks=20.0))


def task(pid: int = 1, **known: str) -> AsyncioTask:
    return AsyncioTask(**{"pid": pid, "address": "0x10", "coroutine": "0x20", "name": "Task-1", **known})


def ages(seen: FirstSeen, now: float, *tasks: AsyncioTask, host: tuple[Process, ...] = HOST) -> list[float | None]:
    return [each.first_seen_age_ms for each in seen.date(tasks, host, now)]


def test_a_task_is_as_old_as_its_first_sight() -> None:
    seen = FirstSeen()
    assert ages(seen, 100.0, task()) == [0.0]
    assert ages(seen, 103.5, task(), task(2)) == [3500.0, 0.0]


def test_another_task_at_the_same_address_is_new() -> None:
    seen = FirstSeen()
    ages(seen, 100.0, task())
    assert ages(seen, 101.0, task(coroutine="0x21"), task(name="Task-2")) == [0.0, 0.0]
    # The first one is gone: should its like come again, it is another.
    assert ages(seen, 102.0, task()) == [0.0]


def test_another_process_of_the_same_pid_has_other_tasks() -> None:
    seen = FirstSeen()
    ages(seen, 100.0, task())
    assert ages(seen, 101.0, task(), host=(Process(pid=1, start_ticks=11.0),)) == [0.0]


def test_a_process_that_was_not_looked_at_keeps_its_tasks_until_it_ends() -> None:
    seen = FirstSeen()
    ages(seen, 100.0, task(), task(2))
    ages(seen, 101.0, task(2))
    assert ages(seen, 102.0, task()) == [2000.0]
    ages(seen, 103.0, task(2), host=HOST[1:])
    assert ages(seen, 104.0, task()) == [0.0]
