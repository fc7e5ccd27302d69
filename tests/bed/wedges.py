"""The wedges, each with how it is entered, how it is left, and how the bed knows that it is in force.

A new wedge is one class and one entry in `WEDGES`. `in_force` looks at the bed's own truth only: the control
channels, never the router.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from tests.bed.bed import Bed
    from tests.bed.parts import Engine

SPINNING_ROUNDS = 100  # between two looks; a scheduler that sleeps makes one round per second
STILL_S = 0.3  # hung requests have not changed for this long


class Wedge:
    """A state of the bed; `enter` is called on quiet ground or under load, `leave` after the harness was cancelled."""

    name: str
    about: str
    stray = False
    disaggregated_only = False
    hangs = True
    """Whether every request of the harness hangs in it."""

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

    def enter(self, bed: Bed) -> None:
        raise NotImplementedError

    def leave(self, bed: Bed) -> None:
        """Undo what clearing the engines' faults does not undo."""

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        """Whether the fault itself is there; `harness` is the harness's status."""
        raise NotImplementedError

    def watcher(self, bed: Bed) -> Callable[[], bool]:
        """A condition to poll: the wedge is in force and, where it hangs, all the harness has asked for is still."""
        seen: list[Any] = [None, time.monotonic()]

        def condition() -> bool:
            harness = bed.client("harness", do="status")
            if self.hangs:
                picture = [(entry["request_id"], entry["bytes_in"]) for entry in harness["clients"]]
                if picture != seen[0] or harness["in_flight"] != bed.clients:
                    seen[:] = [picture, time.monotonic()]
                    return False
                if time.monotonic() - seen[1] < STILL_S:
                    return False
            return self.in_force(bed, harness)

        return condition


class NoWedge(Wedge):
    name = "none"
    about = "30 clients are served, one streamed answer after another"
    hangs = False
    traffic: ClassVar[dict[str, float]] = {}

    def __init__(self) -> None:
        self._before: dict[int, int] = {}

    def enter(self, bed: Bed) -> None:
        self._before = completed_by_client(bed)
        bed.client("harness", do="run", **self.traffic)

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return all(entry["completed"] > self._before[entry["index"]] for entry in harness["clients"])


class Burst(NoWedge):
    name = "burst"
    about = "a lookalike: 30 requests at once, a pause of 2 s, and again"
    traffic: ClassVar[dict[str, float]] = {"gap": 2.0}


class Idle(NoWedge):
    name = "idle"
    about = "everything is up, every client was served once and keeps its connection, nothing is in flight"

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        if not super().in_force(bed, harness):
            return False
        if harness["running"]:
            bed.client("harness", do="pause")
            return False
        return harness["in_flight"] == 0 and all(
            not engine.http(do="status")["in_flight"] for engine in bed.engines.values()
        )


class IdleSpinning(Idle):
    name = "idle-spinning"
    about = "a lookalike: idle, and both schedulers burn a core each, as SGLang does without --sleep-on-idle"

    def __init__(self) -> None:
        super().__init__()
        self._loops: dict[str, int] = {}

    def enter(self, bed: Bed) -> None:
        super().enter(bed)
        for engine in bed.engines.values():
            engine.scheduler(do="set", spin=True)

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        loops = {name: engine.scheduler(do="status")["loops"] for name, engine in bed.engines.items()}
        spinning = all(count - self._loops.get(name, count) > SPINNING_ROUNDS for name, count in loops.items())
        self._loops = loops
        return super().in_force(bed, harness) and spinning


class SlowPrefill(Wedge):
    name = "slow-prefill"
    about = "a lookalike: a prefill batch takes 6 s and counts tokens all the while"
    hangs = False

    def engine_name(self, bed: Bed) -> str | None:
        return bed.chosen_engine or next(iter(bed.engines))

    def enter(self, bed: Bed) -> None:
        self.engine(bed).scheduler(do="set", prefill_s=6.0)
        bed.client("harness", do="run")

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return bool(harness["in_flight"] == bed.clients) and len(self.engine(bed).http(do="status")["in_flight"]) > 0


class RouterDualLeg(Wedge):
    name = "router-dual-leg"
    about = "decode answers 500 at once, so prefill waits for its handshake for ever and the router for prefill"
    disaggregated_only = True

    def engine_name(self, bed: Bed) -> str | None:
        return "decode"

    def enter(self, bed: Bed) -> None:
        self.engine(bed).http(do="set", fault="error")
        bed.client("harness", do="run")

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return bool(bed.engines["prefill"].scheduler(do="status")["num_prefill_bootstrap_queue_reqs"] == bed.clients)


class EngineFault(Wedge):
    """A fault of one engine's HTTP process: the decode engine's, or the first one's in a regular bed."""

    fault: str

    def engine_name(self, bed: Bed) -> str | None:
        return bed.chosen_engine or ("engine0" if bed.regular else "decode")

    def enter(self, bed: Bed) -> None:
        self.engine(bed).http(do="set", fault=self.fault)
        bed.client("harness", do="run")


class EngineSilent(EngineFault):
    name = "engine-silent"
    about = "the engine's HTTP process reads requests and hands them to nobody"
    fault = "silent"

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return bool(self.engine(bed).http(do="status")["silenced"] == bed.clients)


class EngineLoopBlocked(EngineFault):
    name = "engine-loop-blocked"
    about = "the engine's event loop sleeps in synchronous code"
    fault = "block-sleep"

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return bool(self.engine(bed).http(do="status")["blocked"])


class EngineLoopLocked(EngineLoopBlocked):
    name = "engine-loop-locked"
    about = "the engine's event loop waits for a lock that the thread lock-holder keeps"
    fault = "block-lock"


class EngineNotAccepting(EngineFault):
    name = "engine-not-accepting"
    about = "the engine listens and never accepts"
    fault = "not-accepting"

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        status = self.engine(bed).http(do="status")
        return not status["accepting"] and not status["in_flight"]


class SchedulerQueue(Wedge):
    name = "scheduler-queue"
    about = "the scheduler never admits its waiting queue"

    def engine_name(self, bed: Bed) -> str | None:
        return bed.chosen_engine or next(iter(bed.engines))

    def enter(self, bed: Bed) -> None:
        self.engine(bed).scheduler(do="set", hold=True)
        bed.client("harness", do="run")

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return bool(self.engine(bed).scheduler(do="status")["num_queue_reqs"] >= bed.clients)


class RouterStopped(NoWedge):
    name = "router-stopped"
    about = "the router was stopped by a signal while it served"
    hangs = True

    def __init__(self) -> None:
        super().__init__()
        self._stopped = False

    def enter(self, bed: Bed) -> None:
        self._stopped = False
        super().enter(bed)
        bed.wait_for("every client to wait for an answer", lambda: self._all_wait(bed))
        bed.signal_router(signal.SIGSTOP)
        self._stopped = True

    def _all_wait(self, bed: Bed) -> bool:
        """Whether each client was served before, so the router has accepted it, and is in the middle of a request."""
        harness = bed.client("harness", do="status")
        served = NoWedge.in_force(self, bed, harness)
        return served and all(entry["state"] in ("sent", "streaming") for entry in harness["clients"])

    def leave(self, bed: Bed) -> None:
        bed.signal_router(signal.SIGCONT)

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return self._stopped


class StrayClient(Wedge):
    name = "stray-client"
    about = "30 requests hang (router-dual-leg, or engine-silent in a regular bed) while a stray client streams"
    stray = True

    def engine_name(self, bed: Bed) -> str | None:
        return self._hang(bed).engine_name(bed)

    def enter(self, bed: Bed) -> None:
        self._hang(bed).enter(bed)

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        stray = bed.client("stray", do="status")["clients"][0]
        fresh = time.monotonic() - stray["last_byte_monotonic"] < 1.0
        return self._hang(bed).in_force(bed, harness) and stray["state"] == "streaming" and fresh

    @staticmethod
    def _hang(bed: Bed) -> Wedge:
        return EngineSilent() if bed.regular else RouterDualLeg()


def completed_by_client(bed: Bed) -> dict[int, int]:
    return {entry["index"]: entry["completed"] for entry in bed.client("harness", do="status")["clients"]}


WEDGES: tuple[type[Wedge], ...] = (
    NoWedge,
    Idle,
    RouterDualLeg,
    StrayClient,
    EngineSilent,
    EngineLoopBlocked,
    EngineLoopLocked,
    EngineNotAccepting,
    SchedulerQueue,
    RouterStopped,
    IdleSpinning,
    Burst,
    SlowPrefill,
)


def find_wedge(name: str) -> Wedge:
    """A fresh wedge of that name.

    Raises:
        ValueError: there is none.
    """
    for wedge in WEDGES:
        if wedge.name == name:
            return wedge()
    raise ValueError(f"no wedge {name!r}; there are: {', '.join(w.name for w in WEDGES)}")
