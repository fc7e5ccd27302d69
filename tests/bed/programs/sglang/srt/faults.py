"""The wedges of the HTTP process, entered and left through its control socket.

- ``error``: HTTP 500 at once, for requests that came through a disaggregation router (they have a bootstrap room);
- ``silent``: read and handed to nobody;
- ``block-sleep``: the event loop sleeps in ``render_in_sleep``, synchronous code;
- ``block-lock``: the event loop waits in ``render_behind_lock`` for a lock that the thread ``lock-holder`` keeps;
- ``block-disk``: the event loop reads, in ``render_from_disk``, the file that was named with the fault;
- ``not-accepting``: the server accepts nothing, its socket goes on listening.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

FAULTS = ("error", "silent", "block-sleep", "block-lock", "block-disk", "not-accepting")


class ReleasedError(Exception):
    """A block of the event loop was lifted."""


class Faults:
    """Which fault is set; `clear` and `set` are called from the control thread, the rest from the event loop."""

    def __init__(self) -> None:
        self.current: str | None = None
        self.blocked = False
        self._lock = threading.Lock()
        self._release_lock = threading.Event()
        self._silence_ends = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.silenced = 0
        self._path = ""
        signal.signal(signal.SIGUSR1, self._on_release)

    def bind_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def set(self, fault: str, path: str = "") -> None:
        if fault not in FAULTS:
            raise ValueError(f"unknown fault {fault!r}")
        self._release_lock.clear()
        self._path = path
        self.current = fault

    def clear(self) -> None:
        self.current = None
        self._release_lock.set()
        main = threading.main_thread().ident
        if self.blocked and main is not None:
            signal.pthread_kill(main, signal.SIGUSR1)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._end_silence)

    def _end_silence(self) -> None:
        self._silence_ends.set()
        self._silence_ends = asyncio.Event()

    def _on_release(self, _signum: int, _frame: FrameType | None) -> None:
        if self.blocked and self.current is None:
            raise ReleasedError

    async def hand_to_nobody(self) -> None:
        """Wait until the fault is cleared; nobody else knows of the request."""
        self.silenced += 1
        try:
            await self._silence_ends.wait()
        finally:
            self.silenced -= 1

    def block_event_loop(self) -> None:
        """Synchronous code on the event loop, until the fault is cleared."""
        if self.current == "block-sleep":
            self._guarded(render_in_sleep)
        elif self.current == "block-lock":
            held = threading.Event()
            holder = threading.Thread(
                target=hold_render_lock, args=(self._lock, held, self._release_lock), name="lock-holder", daemon=True
            )
            holder.start()
            held.wait()
            self._guarded(lambda: render_behind_lock(self._lock))

        elif self.current == "block-disk":
            self._guarded(lambda: render_from_disk(self._path))

    def _guarded(self, block: Callable[[], None]) -> None:
        try:
            self.blocked = True
            if self.current is not None:
                block()
        except ReleasedError:
            pass
        finally:
            self.blocked = False


def render_in_sleep() -> None:
    """Stands for a template that takes for ever to render."""
    while True:
        time.sleep(3600)


def render_behind_lock(lock: threading.Lock) -> None:
    """Stands for a renderer behind a lock that somebody else keeps."""
    with lock:
        pass


def render_from_disk(path: str) -> None:
    """Stands for a template on a network file system."""
    with open(path, "rb") as template:
        template.read(1)


def hold_render_lock(lock: threading.Lock, held: threading.Event, release: threading.Event) -> None:
    with lock:
        held.set()
        release.wait()
