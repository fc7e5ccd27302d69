"""The front's ends of one worker."""

from __future__ import annotations

import asyncio
import fcntl
import os
from contextlib import suppress

from freezeframe.agentd.frames import SLOT_BYTES, Slot, read_slot
from freezeframe.agentd.jobs import Job

_READ_BYTES = 64 * 1024
# A worker seldom waits for us then.
_PIPE_BYTES = 1024 * 1024


class Ends:
    """Slot, pipe, and the event that something is to be seen to."""

    def __init__(self, job: Job) -> None:
        """Make them. Raises OSError: out of descriptors or of memory."""
        self.wake = asyncio.Event()
        self.slot = os.memfd_create("freezeframe-job")
        try:
            os.pwrite(self.slot, job.encode(), SLOT_BYTES)
            self._read, self.write = os.pipe2(os.O_CLOEXEC)
        except OSError:
            os.close(self.slot)
            raise
        os.set_blocking(self._read, False)
        with suppress(OSError):
            fcntl.fcntl(self._read, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def close(self) -> None:
        """Let go of all."""
        self.close_write()
        os.close(self._read)
        os.close(self.slot)

    def close_write(self) -> None:
        """Let go of the worker's end: its copy is the only one, so that its end is seen."""
        if self.write >= 0:
            os.close(self.write)
            self.write = -1

    def read(self) -> bytes | None:
        """Give what is there: None when nothing is, b"" when the worker has closed its end."""
        try:
            return os.read(self._read, _READ_BYTES)
        except BlockingIOError:
            return None

    def slot_now(self) -> Slot:
        """Give what the worker is doing."""
        return read_slot(self.slot)

    async def wait(self, until: float) -> None:
        """Wait for data, for news of the worker, or until a moment on the loop's clock."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._read, self.wake.set)
        timer = loop.call_at(until, self.wake.set)
        try:
            await self.wake.wait()
        finally:
            timer.cancel()
            loop.remove_reader(self._read)
            self.wake.clear()
