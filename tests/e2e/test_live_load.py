"""Live load of changing kinds and captures at moments of chance: nobody may be accused.

FREEZEFRAME_LIVE_MINUTES says for how long (`make e2e`: 30); FREEZEFRAME_SEED gives the order of an earlier run again.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.bed.bed import Bed
from tests.bed.parts import Engine
from tests.bed.routers import ROUTERS
from tests.bed.stack import PROGRAMS
from tests.support.command import snap
from tests.support.daemon import Daemon, running_daemon

MINUTES = float(os.environ.get("FREEZEFRAME_LIVE_MINUTES", "0.5"))
SEED = int(os.environ.get("FREEZEFRAME_SEED", random.randrange(1 << 30)))
# Where other beds run on this machine at the same time: look at one's own processes only.
ALONE = not os.environ.get("FREEZEFRAME_SHARED_MACHINE")
QUIET = {"NOT_STUCK", "IDLE", "UNDETERMINED"}
# One kind of load lasts so long, and captures come so long after one another.
LOAD_S = (4.0, 12.0)
PAUSE_S = (0.0, 1.5)
WINDOWS = ("0", "0.3", "1", "2")

pytestmark = [pytest.mark.needs("root", "e2e"), pytest.mark.timeout(300 + 3 * 60 * MINUTES)]

Load = Callable[["Live"], None]


class Live:
    """A bed of two engines under load, what captures said of it, and what was going on."""

    def __init__(self, bed: Bed, agent: Daemon, folder: Path, chance: random.Random) -> None:
        self.bed = bed
        self.chance = chance
        self.codes: dict[str, int] = {}
        self.accused: list[str] = []
        self._agent = agent
        self._folder = folder

    def look_for(self, load: str, seconds: float) -> None:
        """Capture again and again for so long."""
        end = time.monotonic() + seconds
        while True:
            self._look(load)
            pause = self.chance.uniform(*PAUSE_S)
            if time.monotonic() + pause >= end:
                return
            time.sleep(pause)  # captures at moments of chance: nothing is waited for

    def _look(self, load: str) -> None:
        window = self.chance.choice(WINDOWS)
        own = [] if ALONE else [word for pid in self.bed.pids.all() for word in ("-p", str(pid))]
        verdict: dict[str, Any] = snap(self._agent.address, "--window", window, *own, cwd=self._folder)["verdict"]
        self.codes[verdict["code"]] = self.codes.get(verdict["code"], 0) + 1
        if verdict["code"] not in QUIET or verdict["holder_pids"]:
            said = f"{verdict['code']} {verdict['holder_pids']}: {verdict['summary']}"
            self.accused.append(f"{load}, window {window}: {said}")


def steady(live: Live) -> None:
    live.bed.client("harness", do="run")
    live.look_for("steady", live.chance.uniform(*LOAD_S))


def ramp(live: Live) -> None:
    """From a request now and then to all that the clients can send."""
    for gap in (4.0, 1.0, 0.3, 0.0):
        live.bed.client("harness", do="run", gap=gap)
        live.look_for("ramp", live.chance.uniform(*LOAD_S) / 4)


def burst(live: Live) -> None:
    live.bed.client("harness", do="run", gap=2.0)
    live.look_for("burst", live.chance.uniform(*LOAD_S))


def idle(live: Live) -> None:
    live.bed.client("harness", do="pause")
    live.look_for("idle", live.chance.uniform(*LOAD_S))


def long_prefill(live: Live) -> None:
    engine = live.chance.choice(list(live.bed.engines.values()))
    engine.scheduler(do="set", prefill_s=4.0)
    try:
        live.bed.client("harness", do="run")
        live.look_for("long prefill", live.chance.uniform(*LOAD_S))
    finally:
        engine.scheduler(do="clear")


def slow_client(live: Live) -> None:
    """Beside the harness one that takes a few bytes at a time."""
    command = [sys.executable, str(PROGRAMS / "counting_client.py"), "--url", live.bed.url, "--name", "slow"]
    live.bed.client("harness", do="run")
    with subprocess.Popen([*command, "--streams", "2", "--sip"], stdout=subprocess.DEVNULL) as client:
        try:
            live.look_for("slow client", live.chance.uniform(*LOAD_S))
        finally:
            client.terminate()


def rolling_restart(live: Live) -> None:
    """Each engine in turn is taken out, served to its end, started again and put back."""
    live.bed.client("harness", do="run")
    for name in live.bed.engines:
        engine = live.bed.engines[name]
        take_out(live.bed, engine.url)
        live.bed.wait_for(f"{name} to be empty", partial(serves_nobody, engine))
        live.look_for("rolling restart, out", 1.0)
        live.bed.restart(name)
        live.look_for("rolling restart, starting", 1.0)
        call(live.bed, "POST", "/workers", {"url": engine.url})
        live.bed.wait_for(f"{name} to be taken in", live.bed.workers_registered, timeout_s=60)
        live.look_for("rolling restart, back", 1.0)


LOADS: tuple[Load, ...] = (steady, ramp, burst, idle, long_prefill, slow_client, rolling_restart)


def serves_nobody(engine: Engine) -> bool:
    return not engine.http(do="status")["in_flight"]


def take_out(bed: Bed, url: str) -> None:
    (worker,) = [each for each in call(bed, "GET", "/workers")["workers"] if each["url"].rstrip("/") == url]
    call(bed, "DELETE", f"/workers/{worker['id']}")
    bed.wait_for("the router to let go of it", lambda: len(call(bed, "GET", "/workers")["workers"]) == 1)


def call(bed: Bed, method: str, path: str, body: Any = None) -> Any:
    headers = {"content-type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{bed.url}{path}", data=data, headers=headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


@pytest.fixture(scope="module", params=list(ROUTERS))
def bed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    with Bed.start(wedge="idle", regular=True, router=request.param) as started:
        started.wait_wedged()
        yield started


def test_nobody_is_accused_under_live_load(bed: Bed, tmp_path: Path) -> None:
    with running_daemon() as agent:
        live = Live(bed, agent, tmp_path, random.Random(SEED))
        end = time.monotonic() + 60 * MINUTES / len(ROUTERS)
        done: list[str] = []
        while time.monotonic() < end or not done:
            # Each kind once before any comes again.
            for load in live.chance.sample(LOADS, len(LOADS)):
                done.append(load.__name__)
                load(live)
                if time.monotonic() >= end:
                    break
    told = f"seed {SEED}, {bed.router.name}, {', '.join(done)}: {live.codes}"
    print(told)
    assert not live.accused, "\n".join([told, *live.accused])
