"""What a wedge is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tests.bed.parts import Setup

if TYPE_CHECKING:
    from tests.bed.bed import Bed
    from tests.bed.parts import Engine

STILL_S = 0.3  # hung requests have not changed for this long


class Wedge:
    """A state of the bed; `enter` is called on quiet ground or under load.

    `enter` pushes onto `bed.undo` what has to be undone beyond clearing the engines' faults; that is done after the
    harness was cancelled. It may set `hangs`, `spoils` and `settles_s` of its own, by the bed's router.
    """

    name: str
    about: str
    stray = False
    disaggregated_only = False
    setup = Setup()
    hangs = True
    """Whether every request of the harness hangs in it."""
    spoils = False
    """Whether the bed's processes cannot serve after it, so that they have to be started again."""
    settles_s = STILL_S
    """For how long it has to stand until no healthy state looks like it."""

    def check(self, bed: Bed) -> None:
        """Raise ValueError where the bed's topology cannot hold this wedge."""
        if self.disaggregated_only and bed.regular:
            raise ValueError(f"{self.name} needs a disaggregated bed")

    def engine_name(self, bed: Bed) -> str | None:
        """Which engine the fault is in, or None where it is in no engine."""
        return None

    def engine(self, bed: Bed) -> Engine:
        """Return the engine that the fault is in."""
        name = self.engine_name(bed)
        assert name is not None
        return bed.engines[name]

    def mute(self, bed: Bed) -> frozenset[str]:
        """Engines whose control channels do not answer in it."""
        return frozenset()

    def enter(self, bed: Bed) -> None:
        raise NotImplementedError

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        """Whether the fault itself is there; `harness` is the harness's status."""
        raise NotImplementedError

    def watcher(self, bed: Bed, still_s: float = STILL_S) -> Callable[[], bool]:
        """A condition to poll: the wedge is in force and, where it hangs, all the harness has asked for is still."""
        seen: list[Any] = [None, time.monotonic()]

        def condition() -> bool:
            harness = bed.client("harness", do="status")
            if self.hangs:
                picture = [(entry["request_id"], entry["bytes_in"]) for entry in harness["clients"]]
                if picture != seen[0] or harness["in_flight"] != bed.clients:
                    seen[:] = [picture, time.monotonic()]
                    return False
                if time.monotonic() - seen[1] < max(still_s, STILL_S):
                    return False
            return self.in_force(bed, harness)

        return condition


def completed_by_client(bed: Bed) -> dict[int, int]:
    return {entry["index"]: entry["completed"] for entry in bed.client("harness", do="status")["clients"]}


def all_wait(bed: Bed, before: dict[int, int]) -> bool:
    """Whether each client was served since `before`, so the router has accepted it, and is in a request's middle."""
    clients = bed.client("harness", do="status")["clients"]
    return all(
        entry["completed"] > before[entry["index"]] and entry["state"] in ("sent", "streaming") for entry in clients
    )
