"""How often each peer may do something: a bucket of tokens per peer, for a bounded number of peers."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

_MAX_PEERS = 4096


class Rates:
    """Token buckets by name."""

    def __init__(self, burst: float, per_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        """At most `burst` at once and `per_s` in the long run; `clock` gives seconds."""
        self._burst = burst
        self._per_s = per_s
        self._clock = clock
        # Tokens and when they were counted; the peer that was seen last is the last one.
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, peer: str) -> bool:
        """Take a token of `peer`; False when there is none."""
        now = self._clock()
        tokens, counted = self._buckets.pop(peer, (self._burst, now))
        tokens = min(self._burst, tokens + (now - counted) * self._per_s)
        granted = tokens >= 1.0
        self._buckets[peer] = (tokens - 1.0 if granted else tokens, now)
        if len(self._buckets) > _MAX_PEERS:
            self._buckets.popitem(last=False)
        return granted
