"""A running bed: one real router, two engine stand-ins, a harness, perhaps a stray client, and a wedge.

    with Bed.start(wedge="router-dual-leg", clients=30, stray=True) as bed:
        bed.wait_wedged()
        ...                       # look at bed.pids from outside
        bed.enter("none")         # leaves the wedge and enters another
        bed.wait_wedged()

Several beds run side by side. `bed.pids` may change with every `enter`: a wedge that asks for other flags, or that
leaves processes which cannot serve any more, has the programs started again.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tests.bed.parts import RequestTruth, Truth
from tests.bed.stack import WAIT_TIMEOUT_S, Stack, sweep
from tests.bed.wedges import Wedge, find_wedge

if TYPE_CHECKING:
    from typing_extensions import Self


class Bed(Stack):
    """See the module docstring; made by `start`."""

    def __init__(self, *, clients: int, regular: bool, router: str, stray_via: str, tokens: int, gap_s: float) -> None:
        super().__init__(
            clients=clients, regular=regular, router=router, stray_via=stray_via, tokens=tokens, gap_s=gap_s
        )
        self.wedge: Wedge = find_wedge("idle")
        self.chosen_engine: str | None = None
        self.undo = contextlib.ExitStack()
        """What has to be undone when the wedge is left: a wedge pushes it before it does it."""
        self._entered = False

    @classmethod
    def start(
        cls,
        wedge: str = "idle",
        *,
        clients: int = 30,
        regular: bool = False,
        router: str = "sglang-router",
        stray: bool = False,
        stray_via: str = "engine",
        tokens: int = 16,
        gap_s: float = 0.05,
        engine: str | None = None,
    ) -> Bed:
        """Start everything and enter `wedge` (see `wait_wedged` for when it is in force).

        Args:
            wedge: a name of `tests.bed.wedges.WEDGES`.
            clients: of the harness, each with one request in flight at a time.
            regular: two unified engines behind a regular router instead of a prefill and a decode engine.
            router: a name of `tests.bed.routers.ROUTERS`, or "smg-native" for smg in an ELF program (needs gcc).
            stray: whether the stray client streams whatever the wedge is.
            stray_via: "engine" (straight to the decode engine or to the last one) or "router".
            tokens: of one answer to the harness.
            gap_s: between two requests of a client. With 0 the next request leaves in the clock tick in which the last
                answer arrived, so that the ages of the last bytes in and out are equal.
            engine: as in `enter`.

        Raises:
            processes.BedError: something did not come up; everything has been stopped again.
        """
        sweep()
        bed = cls(clients=clients, regular=regular, router=router, stray_via=stray_via, tokens=tokens, gap_s=gap_s)
        bed.keep_stray = stray
        try:
            bed.enter(wedge, engine=engine)
        except BaseException:
            bed.stop()
            raise
        return bed

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End every process and remove the run directory; safe to call twice."""
        self.undo.close()
        super().stop()

    # -- its own word ------------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Everything a script needs, as JSON: pids, urls, logs, run directory."""
        pids = self.pids
        return {
            "wedge": self.wedge.name,
            "engine": self.wedge.engine_name(self),
            "clients": self.clients,
            "product": self.router.name,
            "run_dir": str(self.run_dir),
            "pids": {
                "router": pids.router,
                "harness": pids.harness,
                "stray": pids.stray,
                **{
                    name: {"http": engine.http, "scheduler": engine.scheduler, "detokenizer": engine.detokenizer}
                    for name, engine in pids.engines.items()
                },
            },
            "urls": {
                "router": self.url,
                "router_metrics": self.router_metrics_url,
                **{name: engine.url for name, engine in self.engines.items()},
            },
            "logs": {name: str(log) for name, log in self.logs.items()},
        }

    def truth(self) -> Truth:
        """What is in flight, by the clients' and the engines' own word (the router is not asked)."""
        requests: list[RequestTruth] = []
        completed = failed = 0
        for name in ("harness", "stray"):
            if not any(child.name == name for child in self.children):
                continue
            status = self.client(name, do="status")
            if name == "harness":
                completed, failed = status["completed"], status["failed"]
            requests += [
                RequestTruth(
                    client=name,
                    request_id=entry["request_id"],
                    state=entry["state"],
                    sent_at_monotonic=entry["sent_at_monotonic"],
                    sent_at_wall=entry["sent_at_wall"],
                    last_byte_monotonic=entry["last_byte_monotonic"],
                    bytes_in=entry["bytes_in"],
                )
                for entry in status["clients"]
                if entry["state"] in ("sent", "streaming")
            ]
        mute = self.wedge.mute(self)
        engines = {
            name: {**engine.http(do="status"), "scheduler": engine.scheduler(do="status")}
            for name, engine in self.engines.items()
            if name not in mute
        }
        return Truth(
            wedge=self.wedge.name, requests=tuple(requests), completed=completed, failed=failed, engines=engines
        )

    # -- wedges ------------------------------------------------------------------------------------------------------

    def enter(self, name: str, *, engine: str | None = None, under_load: bool = False) -> None:
        """Leave the present wedge and enter another; `wait_wedged` says when it is in force.

        Args:
            name: a name of `tests.bed.wedges.WEDGES`.
            engine: in which engine an engine's or a scheduler's wedge is; else the decode engine for the HTTP process,
                the prefill engine for the scheduler, or the first one of a regular bed.
            under_load: set the fault while the harness is being served, without a pause in between (only from "none").
        """
        wedge = find_wedge(name)
        wedge.check(self)
        if not (under_load and self.wedge.name == "none"):
            self.leave()
        if self.setup != wedge.setup:
            self.down()
            self.up(wedge.setup)
        self.wedge, self._entered = wedge, True
        self.chosen_engine = engine
        if wedge.stray or self.keep_stray:
            self.start_stray()
        wedge.enter(self)

    def leave(self) -> None:
        """Back to quiet ground: no fault, the harness parked, nothing in flight (but of a stray that is to stay)."""
        if not self._entered:
            return
        self._entered = False
        self.client("harness", do="cancel")
        if not self.keep_stray:
            self.end("stray")
        self.undo.close()
        if self.wedge.spoils:
            self.down()
            return
        for engine in self.engines.values():
            engine.http(do="clear")
            engine.scheduler(do="clear")
        self.wait_for("the harness to be parked", lambda: self.client("harness", do="status")["in_flight"] == 0)
        self.wait_for("the engines to be empty", self.engines_empty)
        self.wait_for("the router to answer", self.router_answers)

    def wait_wedged(self, timeout_s: float = WAIT_TIMEOUT_S, *, settled: bool = False) -> Truth:
        """Return once the wedge is in force, by the bed's own truth.

        Args:
            timeout_s: how long to wait.
            settled: wait until the engines have closed their idle keep-alive connections too (5 s), so that connections
                left over from before the wedge are gone, where all hangs, and until it has stood for `Wedge.settles_s`.

        Raises:
            processes.BedError: the wedge is not in force after `timeout_s`.
        """
        still_s = self.wedge.settles_s if settled else 0.0
        self.wait_for(f"{self.wedge.name} to be in force", self.wedge.watcher(self, still_s), timeout_s=timeout_s)
        if settled and self.wedge.hangs:
            mute = self.wedge.mute(self)
            settled_now = partial(self.connections_settled, mute)
            self.wait_for("idle connections to be closed", settled_now, timeout_s=timeout_s)
        return self.truth()

    @contextlib.contextmanager
    def wedged(self, name: str, *, engine: str | None = None, under_load: bool = False) -> Iterator[Truth]:
        """Enter a wedge, wait until it is in force, and leave it at the end."""
        self.enter(name, engine=engine, under_load=under_load)
        try:
            yield self.wait_wedged()
        finally:
            self.leave()

    def send_signal(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a process of the bed."""
        assert pid in self.pids.all()
        os.kill(pid, number)
