"""Brings a copy of every kept snapshot to another place, once, however long that place is away.

What is not copied yet is read off the store itself, so that a restart forgets nothing. A capture only sets an event. A
failure is tried again later and later, those that failed before after the others; one attempt is under way at a time,
also where the other side neither answers nor refuses.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from freezeframe.agentd import bounded
from freezeframe.agentd.errors import AgentError, StoreFailedError, UnknownSnapshotError
from freezeframe.agentd.logs import Logger
from freezeframe.agentd.store.store import Store

_SUFFIX = ".ffz"
# Without an answer for so long, it is said.
_SILENT_S = 120.0


class Place(Protocol):
    """Where copies go (`store.bucket.Bucket`, `store.folder.Folder`)."""

    async def put(self, name: str, data: bytes) -> None:
        """Write one object, whole or not at all. Raises StoreFailedError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """How copies fare."""

    # Since the agent began.
    copied: int
    # Not copied yet.
    waiting: int
    # Of the last attempt that failed, when none has succeeded since.
    failure: AgentError | None


class Copier:
    """Copies from one store to one place."""

    def __init__(
        self,
        store: Store,
        place: Place,
        logger: Logger,
        *,
        pauses_s: tuple[float, float] = (1.0, 300.0),
        silent_s: float = _SILENT_S,
    ) -> None:
        """After a failure it pauses, twice as long each time, between the two `pauses_s`."""
        self._store = store
        self._place = place
        self._logger = logger
        self._pauses_s = pauses_s
        self._silent_s = silent_s
        self._copied = 0
        self._failures: Counter[str] = Counter()
        self._failure: AgentError | None = None

    async def state(self) -> Copying:
        """Say how copies fare. Raises StoreFailedError."""
        waiting = len(await self._store.uncopied())
        return Copying(copied=self._copied, waiting=waiting, failure=self._failure)

    async def run(self) -> None:
        """Copy until cancelled."""
        shortest_s, longest_s = self._pauses_s
        pause_s = shortest_s
        while True:
            self._store.kept_one.clear()
            try:
                waiting = await self._store.uncopied()
                if waiting:
                    await self._copy(min(waiting, key=lambda each: self._failures[each]))
            except AgentError as error:
                if self._failure is None:
                    self._logger.warning("copying", error=error.detail, hint=error.hint)
                self._failure = error
                # A new one is tried at once: it may not be its turn to fail.
                with contextlib.suppress(asyncio.TimeoutError):
                    await bounded.wait(self._store.kept_one.wait(), pause_s)
                pause_s = min(2 * pause_s, longest_s)
                continue
            pause_s = shortest_s
            if not waiting:
                self._failures.clear()
                await self._store.kept_one.wait()

    async def _copy(self, snapshot_id: str) -> None:
        # Counted first: it goes behind the others whatever happens to it.
        self._failures[snapshot_id] += 1
        try:
            data = b"".join([chunk async for _, chunk in self._store.read(snapshot_id)])
        except UnknownSnapshotError:
            # Removed to make room, or by its owner.
            return
        putting = asyncio.ensure_future(self._place.put(snapshot_id + _SUFFIX, data))
        try:
            while not (await asyncio.wait([putting], timeout=self._silent_s))[0]:
                self._failure = StoreFailedError(
                    f"copying {snapshot_id}: no answer within {self._silent_s:g} s", "look at the place for copies"
                )
        finally:
            putting.cancel()
        await putting
        await self._store.copied(snapshot_id)
        self._copied += 1
        self._failure = None
