"""Faults of a client, and what it leaves behind."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.bed.parts import Setup
from tests.bed.wedges.base import Wedge
from tests.bed.wedges.engines import STALLED_S, EngineSilent, PrefillSilent, StreamStalls
from tests.bed.wedges.routers import RouterDualLeg

if TYPE_CHECKING:
    from tests.bed.bed import Bed


class StrayClient(Wedge):
    name = "stray-client"
    about = (
        "30 requests hang, as in router-dual-leg where the router does that, else in prefill-silent; a stray streams"
    )
    stray = True

    def __init__(self) -> None:
        self._hang: Wedge | None = None

    def hang(self, bed: Bed) -> Wedge:
        if self._hang is None:
            dual_leg = bed.router.waits_for_both_legs and not bed.regular
            # Not in the engine that the stray talks to.
            silent = EngineSilent() if bed.regular else PrefillSilent()
            self._hang = RouterDualLeg() if dual_leg else silent
            # An engine that works for one client may be in the prefill of the others for some seconds.
            self.settles_s = self.settles_s if dual_leg else STALLED_S
        return self._hang

    def engine_name(self, bed: Bed) -> str | None:
        return self.hang(bed).engine_name(bed)

    def enter(self, bed: Bed) -> None:
        self.hang(bed).enter(bed)

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        stray = bed.client("stray", do="status")["clients"][0]
        fresh = time.monotonic() - stray["last_byte_monotonic"] < 1.0
        return self.hang(bed).in_force(bed, harness) and stray["state"] == "streaming" and fresh


class ClientNotReading(Wedge):
    name = "client-not-reading"
    about = "no client reads its answer, which goes on; the router keeps it in its own memory"
    answer_tokens = 4000
    batches = 60

    def __init__(self) -> None:
        self._before = 0

    def engine_name(self, bed: Bed) -> str | None:
        return list(bed.engines)[-1]

    def enter(self, bed: Bed) -> None:
        self._before = self.engine(bed).scheduler(do="status")["decode_batches"]
        bed.client("harness", do="run", read=False, tokens=self.answer_tokens)

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        batches = self.engine(bed).scheduler(do="status")["decode_batches"] - self._before
        return bool(batches >= self.batches) and all(e["state"] == "streaming" for e in harness["clients"])


class ClientGoneMidstream(Wedge):
    name = "client-gone-midstream"
    about = "every answer stalled after 5 tokens and then the clients left; sglang-router goes on waiting for decode"
    hangs = False

    def __init__(self) -> None:
        self._stall = StreamStalls()
        self._gone_at = 0.0

    def engine_name(self, bed: Bed) -> str | None:
        return self._stall.engine_name(bed)

    def enter(self, bed: Bed) -> None:
        self._stall.enter(bed)
        bed.wait_for("the answers to stall", self._stall.watcher(bed))
        bed.client("harness", do="cancel")
        self._gone_at = time.monotonic()

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return not harness["in_flight"] and time.monotonic() - self._gone_at >= STALLED_S


class ClientPoolOf4(EngineSilent):
    name = "client-pool-of-4"
    about = "the harness has a pool of 4 connections: 4 requests hang in an engine and 26 never leave the client"
    pool = 4
    setup = Setup(pool=pool)

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return bool(self.engine(bed).http(do="status")["silenced"] == self.pool)
