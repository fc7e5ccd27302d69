"""A copier at work, and waiting for what it does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import structlog

from freezeframe.agentd.store import Copier, Copying, Store
from freezeframe.agentd.store.copier import Place

PAUSES_S = (0.05, 0.4)


@contextlib.asynccontextmanager
async def copying(store: Store, place: Place, silent_s: float = 60.0) -> AsyncIterator[Copier]:
    copier = Copier(store, place, structlog.get_logger(), pauses_s=PAUSES_S, silent_s=silent_s)
    running = asyncio.ensure_future(copier.run())
    try:
        yield copier
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def until(copier: Copier, holds: Callable[[Copying], bool], limit_s: float = 60.0) -> Copying:
    async def poll() -> Copying:
        while not holds(state := await copier.state()):
            await asyncio.sleep(0.02)
        return state

    return await asyncio.wait_for(poll(), limit_s)


def nothing_waits(state: Copying) -> bool:
    return state.waiting == 0
