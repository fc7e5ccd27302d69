"""Processes held by pidfd for a whole capture: start times repeat within 10 ms, a pidfd never does."""

from __future__ import annotations

import contextlib
import os
import select
from collections.abc import Iterable

from freezeframe.agentd.jobs import Target


class Held:
    """Some processes, held."""

    def __init__(self, targets: Iterable[Target]) -> None:
        """Open a pidfd for each; one that is gone already counts as exited."""
        self._gone: set[int] = set()
        self._pids: dict[int, int] = {}
        for target in targets:
            try:
                self._pids[os.pidfd_open(target.pid)] = target.pid
            except ProcessLookupError:
                self._gone.add(target.pid)
            except OSError:
                # Out of descriptors or not allowed: the collectors still compare start times.
                continue

    def exited(self) -> frozenset[int]:
        """Pids of those that have ended since; never blocks."""
        poll = select.poll()
        for descriptor in self._pids:
            poll.register(descriptor, select.POLLIN)
        return frozenset(self._gone | {self._pids[descriptor] for descriptor, _ in poll.poll(0)})

    def close(self) -> None:
        """Let go of all; safe to call twice."""
        for descriptor in self._pids:
            with contextlib.suppress(OSError):
                os.close(descriptor)
        self._pids.clear()
