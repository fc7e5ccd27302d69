"""A directory where copies go, of a network file system for instance.

The disk's work happens in one thread of its own, which a mount that does not answer holds up and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from concurrent.futures import ThreadPoolExecutor

from freezeframe.agentd.errors import StoreFailedError
from freezeframe.agentd.store.whole import write_whole


class Folder:
    """One directory, which has to be there; a copy in it is for the agent's user alone."""

    def __init__(self, path: str) -> None:
        """Nothing is touched yet."""
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="copies")

    async def put(self, name: str, data: bytes) -> None:
        """Write one file, whole or not at all. Raises StoreFailedError."""
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._write, name, data)
        except OSError as error:
            hint = "make the directory, for the agent to write, or mount it"
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                hint = "free space there"
            raise StoreFailedError(f"copying {name} to {self._path}: {error.strerror}", hint) from error

    def _write(self, name: str, data: bytes) -> None:
        directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # What an agent left that was killed meanwhile.
            temporary = f".{name}.tmp"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            write_whole(directory, name, data, temporary=temporary)
        finally:
            os.close(directory)
