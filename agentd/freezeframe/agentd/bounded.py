"""Waits with a limit.

`asyncio.wait_for` before Python 3.12 loses a cancellation that comes in the turn of the loop in which what it waits for
ends: a task that was told to end would go on for ever. Nothing of the agent uses it (pyproject.toml bans it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def wait(awaitable: Awaitable[T], limit_s: float) -> T:
    """Its result. After `limit_s` seconds, or when the caller is cancelled, it is cancelled and waited for.

    Raises asyncio.TimeoutError, and what it raises itself.
    """
    future = asyncio.ensure_future(awaitable)
    try:
        done, _ = await asyncio.wait({future}, timeout=limit_s)
        if done:
            return future.result()
    finally:
        if not future.done():
            future.cancel()
            await asyncio.wait({future})
    raise asyncio.TimeoutError
