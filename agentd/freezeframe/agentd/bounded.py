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
        in_time, _ = await asyncio.wait({future}, timeout=limit_s)
    finally:
        if not future.done():
            future.cancel()
            await asyncio.wait({future})
        # Looked at: of an error that a cancelled caller never sees, asyncio would log a traceback.
        if not future.cancelled():
            future.exception()
    # What it still raised, or gave, while it was cancelled stands.
    if not in_time and future.cancelled():
        raise asyncio.TimeoutError
    return future.result()
