"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def eventually(holds: Callable[[], bool], timeout_s: float = 20.0) -> None:
    give_up = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < give_up, "it did not become true in time"
        await asyncio.sleep(0.005)
