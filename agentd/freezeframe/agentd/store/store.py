"""The store as the event loop sees it: the disk's work happens in one thread of its own, under a time limit.

A thread is enough here, where a read of a target would need a process: these are our own regular files. A disk that
hangs holds up this thread and nothing else; calls then end after `timeout_s` with StoreFailedError, and the captures
go on to reach their clients. One thread also means that no two calls change the directory at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TypeVar

from freezeframe.agentd.config import StoreLimits
from freezeframe.agentd.errors import StoreFailedError
from freezeframe.agentd.store.directory import Condition, Directory, Kept

LATEST = "latest"
CHUNK_BYTES = 1024 * 1024

T = TypeVar("T")


class Store:
    """Kept snapshots. Every method may raise StoreFailedError."""

    def __init__(self, path: str, limits: StoreLimits, timeout_s: float = 10.0) -> None:
        """Keep snapshots in the directory `path`, which is opened by the first call."""
        self._path = path
        self._limits = limits
        self._timeout_s = timeout_s
        self._directory: Directory | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        # Set by every snapshot that is kept; whoever waits for it clears it.
        self.kept_one = asyncio.Event()

    async def put(self, snapshot_id: str, data: bytes) -> None:
        """Keep a snapshot; the oldest unpinned ones go when there are too many."""
        await self._do(f"keeping {snapshot_id}", lambda: self._opened().put(snapshot_id, data))
        self.kept_one.set()

    async def kept(self, limit: int = 0) -> list[Kept]:
        """List what is kept, newest first, at most `limit` (0 = all)."""
        return await self._do("listing the store", lambda: self._opened().kept(limit))

    async def read(self, snapshot_id: str) -> AsyncGenerator[tuple[str, bytes], None]:
        """Stream a file in chunks of at most 1 MiB, each with the file's id; "latest" is the newest.

        Raises UnknownSnapshotError, SnapshotDamagedError.
        """
        doing = f"reading {snapshot_id}"
        opened: list[IO[bytes]] = []

        def open_file() -> str:
            found, stream = self._opened().reader(None if snapshot_id == LATEST else snapshot_id)
            opened.append(stream)
            return found

        def close_file() -> None:
            for stream in opened:
                stream.close()

        try:
            found = await self._do(doing, open_file)
            while chunk := await self._do(doing, lambda: opened[0].read(CHUNK_BYTES)):
                yield found, chunk
        finally:
            # In the same thread, so after an open that a leaving caller did not wait for.
            self._thread.submit(close_file)

    async def delete(self, snapshot_id: str) -> None:
        """Delete one. Raises UnknownSnapshotError, SnapshotPinnedError."""
        await self._do(f"deleting {snapshot_id}", lambda: self._opened().delete(snapshot_id))

    async def pin(self, snapshot_id: str, *, pinned: bool) -> None:
        """Pin or unpin one. Raises UnknownSnapshotError."""
        await self._do(f"pinning {snapshot_id}", lambda: self._opened().pin(snapshot_id, pinned))

    async def uncopied(self) -> list[str]:
        """List the snapshots that were not marked as copied, oldest first."""
        return await self._do("listing the store", lambda: self._opened().uncopied())

    async def copied(self, snapshot_id: str) -> None:
        """Mark one as copied."""
        await self._do(f"marking {snapshot_id} as copied", lambda: self._opened().copied(snapshot_id))

    async def check(self, limit_s: float = 2.0) -> Condition:
        """Say in what condition the store is; files are read in full for at most `limit_s`."""
        return await self._do("checking the store", lambda: self._opened().check(limit_s))

    def close(self) -> None:
        """Let go; a thread that a dead disk holds is not waited for."""
        if self._directory is not None:
            self._thread.submit(self._directory.close)
        self._thread.shutdown(wait=False)

    def _opened(self) -> Directory:
        if self._directory is None:
            self._directory = Directory(self._path, self._limits)
        return self._directory

    async def _do(self, doing: str, work: Callable[[], T]) -> T:
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        # The thread is not waited for when this is cancelled.
        if not (await asyncio.wait({future}, timeout=self._timeout_s))[0]:
            future.cancel()
            raise StoreFailedError(
                f"{doing}: the disk of {self._path} does not answer within {self._timeout_s:g} s",
                "look for a dead disk or mount: dmesg, mount",
            )
        try:
            return future.result()
        except OSError as error:
            raise StoreFailedError(f"{doing}: {error.strerror}") from error
