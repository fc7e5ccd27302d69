"""A fixed amount of past: one value a second of each of a bounded number of series. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

SAMPLES = 900
INTERVAL_S = 1.0
# With 900 samples of 4 bytes: 1.8 MB.
MAX_SERIES = 512
_NOTHING = float("nan")


class Key(NamedTuple):
    """What one series is of."""

    # "answer bytes", "answer events" and "request bytes" per second of an edge, "requests" in flight on it, "cpu" of a
    # process in percent of one, "running threads" and "blocked threads" of one, "pressure" of the host in percent.
    kind: str
    # For an edge whose client is on another host its address; the resource of a pressure; else empty.
    subject: str = ""
    # The process; of an edge the server.
    pid: int = 0
    # The client of an edge.
    peer_pid: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One series as it is told: from its first sample that is kept to now."""

    key: Key
    # Oldest first; NaN where nothing was known.
    values: list[float]
    # Seconds since the last value that was not 0; None when there is none.
    last_nonzero_s: float | None


class History:
    """Ring buffers side by side, all at one position."""

    def __init__(self, *, samples: int = SAMPLES, max_series: int = MAX_SERIES) -> None:
        """Start empty."""
        self._samples = samples
        self._max = max_series
        self._values: dict[Key, array[float]] = {}
        # Number of the first sample of each series, and of the last one that was not 0; -1 when none was.
        self._first: dict[Key, int] = {}
        self._last_nonzero: dict[Key, int] = {}
        self._count = 0
        # Series for which there was no room.
        self.lost = 0

    def add(self, values: Mapping[Key, float]) -> None:
        """Take the sample of one second; a series that is not in it has no value then."""
        at = self._count % self._samples
        for key, ring in self._values.items():
            ring[at] = values.get(key, _NOTHING)
        for key, value in values.items():
            if key not in self._values and not self._begin(key, at, value):
                continue
            if value:
                self._last_nonzero[key] = self._count
        self._count += 1

    def _begin(self, key: Key, at: int, value: float) -> bool:
        if not value:
            return False  # what has always been 0 tells nothing
        if len(self._values) >= self._max and not self._make_room():
            self.lost += 1
            return False
        ring = array("f", [_NOTHING]) * self._samples
        ring[at] = value
        self._values[key] = ring
        self._first[key] = self._count
        return True

    def _make_room(self) -> bool:
        """Forget the series that has been silent for the longest, when one has for as long as is kept."""
        oldest = min(self._last_nonzero, key=self._last_nonzero.__getitem__)
        if self._count - self._last_nonzero[oldest] < self._samples // 10:
            return False
        for table in (self._values, self._first, self._last_nonzero):
            del table[oldest]
        return True

    def tell(self) -> list[Told]:
        """All series, those of the largest recent values first."""
        found = []
        for key, ring in self._values.items():
            kept = min(self._count - self._first[key], self._samples)
            numbers = range(self._count - kept, self._count)
            values = [ring[number % self._samples] for number in numbers]
            ago = self._count - 1 - self._last_nonzero[key]
            if ago < self._samples:
                found.append(Told(key=key, values=values, last_nonzero_s=ago * INTERVAL_S))
        return sorted(found, key=lambda told: told.key)
