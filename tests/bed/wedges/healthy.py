"""States in which nothing is wrong, and their lookalikes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, ClassVar

from tests.bed.wedges.base import Wedge, completed_by_client

if TYPE_CHECKING:
    from tests.bed.bed import Bed

SPINNING_ROUNDS = 100  # between two looks; a scheduler that sleeps makes one round per second


class NoWedge(Wedge):
    name = "none"
    about = "30 clients are served, one streamed answer after another"
    hangs = False
    traffic: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.before: dict[int, int] = {}

    def enter(self, bed: Bed) -> None:
        self.before = completed_by_client(bed)
        bed.client("harness", do="run", **self.traffic)

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return all(entry["completed"] > self.before[entry["index"]] for entry in harness["clients"])


class Burst(NoWedge):
    name = "burst"
    about = "a lookalike: 30 requests at once, a pause of 2 s, and again"
    traffic: ClassVar[dict[str, Any]] = {"gap": 2.0}


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


class Websockets(Idle):
    name = "websockets"
    about = "a lookalike: idle, and 4 websockets of the harness are open to an engine, the client has spoken last"
    silent_s = 10.5

    def __init__(self) -> None:
        super().__init__()
        self._since = 0.0

    def enter(self, bed: Bed) -> None:
        super().enter(bed)
        engine = list(bed.engines.values())[-1]
        bed.client("harness", do="websockets", url=f"{engine.url}/v1/realtime", count=4)
        self._since = time.monotonic()

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return super().in_force(bed, harness) and time.monotonic() - self._since >= self.silent_s


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


class SlowStream(Wedge):
    name = "slow-stream"
    about = "a lookalike: every answer comes at one token in 2 s"
    hangs = False

    def engine_name(self, bed: Bed) -> str | None:
        return bed.chosen_engine or list(bed.engines)[-1]

    def enter(self, bed: Bed) -> None:
        self.engine(bed).scheduler(do="set", step_s=2.0)
        bed.client("harness", do="run", tokens=100)

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        now = time.monotonic()
        return all(e["state"] == "streaming" and now - e["sent_at_monotonic"] > 4.0 for e in harness["clients"])
