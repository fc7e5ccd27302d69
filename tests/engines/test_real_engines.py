"""Real engine x wedge -> code and holder, through the daemon and the client as users run them: `make engines`."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engines.products import PRODUCTS
from tests.engines.results import Outcome, Results
from tests.engines.stack import CLIENTS, RealStack, running
from tests.engines.wedges import WEDGES, Wedge
from tests.support.command import snap
from tests.support.daemon import Daemon, running_daemon

pytestmark = [pytest.mark.needs("root", "e2e", "engines"), pytest.mark.timeout(900)]

PAIR = "-pair"
STACKS = ("vllm", "sglang", f"sglang{PAIR}")
# Where other beds run on this machine at the same time: look at one's own processes only.
ALONE = not os.environ.get("FREEZEFRAME_SHARED_MACHINE")


class Stacks:
    """The stack that the wedges are entered in one after the other: an engine needs a minute to start."""

    def __init__(self) -> None:
        self._name = ""
        self._undo = contextlib.ExitStack()

    def serving(self, name: str) -> RealStack:
        """That stack with everything started."""
        if name != self._name:
            self.stop()
            product, pair = PRODUCTS[name.removesuffix(PAIR)], name.endswith(PAIR)
            self._stack, self._name = self._undo.enter_context(running(product, pair=pair)), name
        self._stack.up()
        return self._stack

    def stop(self) -> None:
        self._name = ""
        self._undo.close()


@pytest.fixture(scope="module")
def stacks() -> Iterator[Stacks]:
    started = Stacks()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def agent() -> Iterator[Daemon]:
    with running_daemon() as started:
        yield started


@pytest.fixture(scope="module")
def results() -> Iterator[Results]:
    gathered = Results()
    yield gathered
    gathered.write()


def cells() -> list[Any]:
    """Pairs of stack and wedge, those of one stack together and what ends an engine last."""
    return [
        pytest.param(stack, wedge, id=f"{stack}-{wedge.name}")
        for stack in STACKS
        for wedge in WEDGES
        if stack in {f"{product}{PAIR * wedge.pair}" for product in wedge.products}
    ]


@contextlib.contextmanager
def entered(stack: RealStack, wedge: Wedge) -> Iterator[None]:
    stack.harness(do="run")
    stack.wait_served()
    with wedge.strike(stack):
        if wedge.hangs:
            stack.wait_still(wedge.still_s)
        yield
    if wedge.spoils:
        stack.end(*wedge.spoils)
    else:
        stack.quiet()


@pytest.mark.parametrize(("name", "wedge"), cells())
def test_real_engine(name: str, wedge: Wedge, stacks: Stacks, agent: Daemon, results: Results, tmp_path: Path) -> None:
    stack = stacks.serving(name)
    with entered(stack, wedge):
        expected = (wedge.code, stack.pids(*wedge.holders) if wedge.holders else [])
        own = [] if ALONE else [word for pid in stack.pids() for word in ("-p", str(pid))]
        began = time.monotonic()
        snapshot = snap(agent.address, *own, cwd=tmp_path)
        verdict = snapshot["verdict"]
        took_s = time.monotonic() - began
        outcome = Outcome(
            engine=f"{stack.product.name} {stack.product.version}" + ", prefill and decode" * wedge.pair,
            wedge=wedge.name, code=wedge.code, holders=wedge.holders, got=verdict["code"],
            got_holders=stack.names(verdict["holder_pids"]),
            exact=(verdict["code"], sorted(verdict["holder_pids"])) == expected,
            confidence=verdict["confidence"], took_s=took_s,
        )  # fmt: skip
    (tmp_path / "snapshot.json").write_text(json.dumps(snapshot))
    results.add(outcome)
    print(outcome.row(), verdict["summary"], sep="\n")
    if wedge.waits_in is not None:
        part, function = wedge.waits_in
        served = {
            task["request_ref"]
            for task in snapshot["asyncio_tasks"]
            if task["pid"] == stack.parts[part] and function in (frame["function"] for frame in task["frames"])
        }
        assert len(served - {""}) == CLIENTS, "tasks, each with its request"
        begin, end = f"{CLIENTS} requests are in asyncio tasks of ", f", all of them waiting in {function} ("
        lines = [line["text"] for line in verdict["evidence"]]
        assert any(line.startswith(begin) and end in line for line in lines), lines
    assert not outcome.wrong, f"{outcome.row()}\n{verdict['summary']}"
