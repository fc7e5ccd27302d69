"""One line per call, refused ones too: who, what, targets, outcome, bytes, milliseconds; in the log, or in a file.

"Who" is the role of the unix socket that the call came through: the kernel let the caller open it because of its group.
grpcio does not tell the caller's uid or pid, so none is claimed. From another host it is the name in the certificate,
and the address; connections that were refused have a line as well. Calls of the health and reflection services are not
written: they tell nothing about a target.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from freezeframe.agentd.logs import Logger

# Lines per second that are written in full; the rest of a flood is counted.
_LINES_PER_S = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call that has ended."""

    # "socket view", "tls alice 10.0.0.7:41002", "tcp 10.0.0.7:41002", "schedule NAME" for what nobody called for.
    who: str
    # Name of the RPC: "Capture"; "connect" for a connection that was refused.
    rpc: str
    # What it was about: pids, addresses, collectors or a snapshot id.
    targets: tuple[str, ...] = ()
    # Status: "OK", "NOT_FOUND", "CANCELLED" ...
    outcome: str = "OK"
    # What was refused or failed; empty when nothing was.
    detail: str = ""
    sent_bytes: int = 0
    duration_ms: float = 0.0


class Audit:
    """Writes the lines; a flood is counted instead, and the count is written."""

    def __init__(self, logger: Logger, clock: Callable[[], float] = time.monotonic) -> None:
        """Write to `logger`; `clock` gives seconds."""
        self._logger = logger
        self._clock = clock
        self._second = 0.0
        self._lines = 0
        self._suppressed = 0

    def record(self, call: Call) -> None:
        """Write one line, or count it when more than a hundred came within this second."""
        now = self._clock()
        if now - self._second >= 1.0:
            self._second = now
            self._lines = 0
        self._lines += 1
        if self._lines > _LINES_PER_S:
            self._suppressed += 1
            return
        self.flush()
        self._logger.info(
            "call",
            who=call.who,
            rpc=call.rpc,
            targets=call.targets,
            outcome=call.outcome,
            detail=call.detail,
            bytes=call.sent_bytes,
            ms=round(call.duration_ms, 1),
        )

    def flush(self) -> None:
        """Write how many lines were left out, if any were."""
        if self._suppressed:
            self._logger.warning("calls not written", count=self._suppressed)
            self._suppressed = 0
