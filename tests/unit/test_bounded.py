from __future__ import annotations

import asyncio
import contextlib

import pytest

from freezeframe.agentd import bounded


async def test_it_gives_the_result_or_raises_what_it_waits_for_raises() -> None:
    async def failing() -> int:
        raise ValueError("no")

    assert await bounded.wait(asyncio.sleep(0, 7), 10) == 7
    with pytest.raises(ValueError, match="no"):
        await bounded.wait(failing(), 10)


async def test_what_takes_longer_is_cancelled_and_has_ended() -> None:
    ended = []

    async def hanging() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    with pytest.raises(asyncio.TimeoutError):
        await bounded.wait(hanging(), 0.01)
    assert ended == [True]


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_ends_the_caller_whenever_it_comes(turns: int) -> None:
    awaited: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def caller() -> None:
        with contextlib.suppress(ValueError):
            await bounded.wait(awaited, 10)
        await asyncio.Event().wait()

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    awaited.set_result(1)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=5)
    assert task.cancelled()
