"""Faults that the router makes, or keeps."""

from __future__ import annotations

import resource
import signal
from typing import TYPE_CHECKING, Any

from tests.bed.parts import Setup
from tests.bed.wedges.base import Wedge, all_wait, completed_by_client
from tests.bed.wedges.engines import EngineSilent

if TYPE_CHECKING:
    from tests.bed.bed import Bed

# Failures in a row that open a router's circuit breaker, by default.
OPENS_AT = 10


class RouterDualLeg(Wedge):
    name = "router-dual-leg"
    about = "decode answers 500 at once, so prefill waits for its handshake for ever and sglang-router for prefill"
    disaggregated_only = True

    def __init__(self) -> None:
        self._failed = 0

    def engine_name(self, bed: Bed) -> str | None:
        return "decode"

    def enter(self, bed: Bed) -> None:
        # smg gives up both legs at once, and after ten such failures its breaker opens.
        self.hangs = bed.router.waits_for_both_legs
        self.spoils = not self.hangs
        self._failed = bed.client("harness", do="status")["failed"]
        self.engine(bed).http(do="set", fault="error")
        bed.client("harness", do="run")

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        if not self.hangs:
            return bool(harness["failed"] - self._failed >= 2 * bed.clients)
        return bool(bed.engines["prefill"].scheduler(do="status")["num_prefill_bootstrap_queue_reqs"] == bed.clients)


class RouterStopped(Wedge):
    name = "router-stopped"
    about = "the router was stopped by a signal while it served"

    def enter(self, bed: Bed) -> None:
        before = completed_by_client(bed)
        bed.client("harness", do="run")
        bed.wait_for("every client to wait for an answer", lambda: all_wait(bed, before))
        bed.undo.callback(bed.send_signal, bed.pids.router, signal.SIGCONT)
        bed.send_signal(bed.pids.router, signal.SIGSTOP)

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return True


class RouterLimit(EngineSilent):
    name = "router-limit"
    about = "the router lets 4 requests pass, which hang in an engine: smg keeps the others, sglang-router refuses them"
    limit = 4
    setup = Setup(
        router_flags=("--max-concurrent-requests", str(limit), "--queue-size", "100", "--queue-timeout-secs", "600")
    )

    def enter(self, bed: Bed) -> None:
        # sglang-router 0.3.2 limits the rate: it refuses with 408 what comes too fast, and in the end all have passed.
        self.hangs = bed.router.queues
        super().enter(bed)

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        passed = self.engine(bed).http(do="status")["silenced"]
        return bool(passed == (min(self.limit, bed.clients) if bed.router.queues else bed.clients))


class RouterOutOfFds(Wedge):
    name = "router-out-of-fds"
    about = "the router may open no descriptor any more: new connections wait in its accept queue"
    # A router that is younger than that may not have begun to accept.
    settles_s = 11.0

    def enter(self, bed: Bed) -> None:
        bed.client("harness", do="hang-up")
        pid = bed.pids.router
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        bed.undo.callback(resource.prlimit, pid, resource.RLIMIT_NOFILE, limits)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
        bed.client("harness", do="run")

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        return True


class BreakerOpen(Wedge):
    name = "breaker-open"
    about = "the engines failed for a moment and the router's breakers are open: it answers every request with 503"
    disaggregated_only = True
    hangs = False
    spoils = True

    def __init__(self) -> None:
        self._failed = 0
        self._mended = False

    def enter(self, bed: Bed) -> None:
        self._failed = bed.client("harness", do="status")["failed"]
        for engine in bed.engines.values():
            engine.http(do="set", fault="error")
        bed.client("harness", do="run")

    def in_force(self, bed: Bed, harness: dict[str, Any]) -> bool:
        since = harness["failed"] - self._failed
        if not self._mended:
            if since >= 2 * OPENS_AT + bed.clients:
                for engine in bed.engines.values():
                    engine.http(do="clear")
                self._mended, self._failed = True, harness["failed"]
            return False
        refused = all("503" in entry["last_error"] for entry in harness["clients"])
        return bool(since >= 2 * bed.clients) and refused
