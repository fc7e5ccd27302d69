"""Faults of the path between two healthy ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.bed.parts import Setup
from tests.bed.wedges.base import Wedge, all_wait, completed_by_client

if TYPE_CHECKING:
    from tests.bed.bed import Bed


class PathLossy(Wedge):
    name = "path-lossy"
    about = "in a network namespace of the bed: from one moment on no packet reaches decode's port"
    setup = Setup(own_network=True)
    resends_s = 4.0

    def __init__(self) -> None:
        self._since = 0.0

    def engine_name(self, bed: Bed) -> str | None:
        return bed.chosen_engine or list(bed.engines)[-1]

    def enter(self, bed: Bed) -> None:
        before = completed_by_client(bed)
        bed.client("harness", do="run")
        bed.wait_for("every client to wait for an answer", lambda: all_wait(bed, before))
        assert bed.namespace is not None
        bed.undo.callback(bed.namespace.drop_nothing)
        bed.namespace.drop_packets_to(self.engine(bed).port)
        self._since = time.monotonic()

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        # Long enough for a segment to be sent again several times.
        return time.monotonic() - self._since >= self.resends_s
