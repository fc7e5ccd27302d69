"""Bytes that a router sends to keep its client's connection alive, told from bytes of an answer.

smg sends a comment, ": ping", on every stream that has been silent for 15 s: a client whose answer has stalled for an
hour still gets bytes, and neither its socket nor a look at the router's own counters shows that they are no progress.
What shows it is that no engine sent the router anything that it could have passed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from freezeframe.judge.correlate.facts import Connection
from freezeframe.judge.correlate.thresholds import KEEP_ALIVE_BYTES, KEEP_ALIVE_EVERY_MS


def with_keep_alives(
    connections: Sequence[Connection], forwarders: Iterable[int], window_ms: float
) -> tuple[Connection, ...]:
    """The connections, with those marked on which a forwarder sent a few bytes that it got from nobody.

    Of those that it sent bytes on as many may carry answers as it got bytes from: the ones that got most.
    """
    # The window may begin right before a comment.
    most = KEEP_ALIVE_BYTES * (1 + window_ms // KEEP_ALIVE_EVERY_MS)
    marked: set[int] = set()
    for pid in forwarders:
        down = [i for i, c in enumerate(connections) if c.server_pid == pid and c.moving]
        up = sum(c.client_pid == pid and c.moving for c in connections)
        down.sort(key=lambda i: connections[i].bytes_down_delta or 0.0, reverse=True)
        marked |= {i for i in down[up:] if (connections[i].bytes_down_delta or 0.0) <= most}
    return tuple(replace(c, kept_alive=True) if i in marked else c for i, c in enumerate(connections))
