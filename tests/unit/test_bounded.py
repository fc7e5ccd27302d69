from __future__ import annotations

import asyncio
import contextlib
import gc

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


async def test_what_ends_by_itself_while_it_is_cancelled_is_not_lost() -> None:
    async def ending(error: Exception | None) -> int:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        if error is not None:
            raise error
        return 7

    assert await bounded.wait(ending(None), 0.01) == 7
    with pytest.raises(OSError, match="reset"):
        await bounded.wait(ending(OSError("reset")), 0.01)


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


@pytest.mark.parametrize("turns", range(1, 5))
async def test_an_error_that_a_cancelled_caller_never_sees_is_not_reported(turns: int) -> None:
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))

    async def failing() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        raise OSError("reset")

    task = asyncio.create_task(bounded.wait(failing(), 10))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=5)
    assert task.done()
    if not task.cancelled():
        task.exception()
    del task
    gc.collect()
    assert reported == []
