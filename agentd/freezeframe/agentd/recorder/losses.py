"""What the recorder has lost lately: what it lost long ago is counted, but is missing from nothing that is told now.

A connection that found no room comes back with its next request, so a loss counts for as long as most requests last.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

LATELY_S = 60.0
_KINDS = ("lost_requests", "lost_connections", "lost_processes", "lost_streams")


class Losses:
    """Losses with their times, at most those of the last minute."""

    def __init__(self) -> None:
        """Nothing has been lost."""
        self._before: dict[str, int] = {}
        self._recent: deque[tuple[float, str, int]] = deque()

    def note(self, now_s: float, counters: Mapping[str, int]) -> None:
        """Take what was counted since the start, once a second."""
        for kind in _KINDS:
            more = counters.get(kind, 0) - self._before.get(kind, 0)
            if more > 0:
                self._recent.append((now_s, kind, more))
                self._before[kind] = counters[kind]

    def lately(self, now_s: float) -> dict[str, int]:
        """Count what was lost within the last minute, by kind; kinds of which nothing was lost are left out."""
        while self._recent and self._recent[0][0] < now_s - LATELY_S:
            self._recent.popleft()
        found: dict[str, int] = {}
        for _, kind, more in self._recent:
            found[kind] = found.get(kind, 0) + more
        return found
