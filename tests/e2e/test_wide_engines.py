"""An engine with several tokenizer workers and a data parallel controller: the one process that hangs is named."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed.wide import WideBed
from tests.e2e.test_topologies import look, told
from tests.support.daemon import Daemon, running_daemon

pytestmark = [pytest.mark.needs("root", "e2e"), pytest.mark.timeout(300)]

LONG_S = 11.0
NAME = "engine1"


@pytest.fixture(scope="module")
def agent() -> Iterator[Daemon]:
    with running_daemon() as started:
        yield started


@pytest.fixture(scope="module")
def bed() -> Iterator[WideBed]:
    with WideBed.start(wedge="idle", regular=True) as started:
        assert isinstance(started, WideBed)
        yield started


def some_wait(bed: WideBed) -> bool:
    """Whether a client has got nothing for long; those that other processes serve go on."""
    return any(waited > LONG_S for waited in waits(bed))


def only_those_wait(bed: WideBed) -> bool:
    return all(waited > LONG_S for waited in waits(bed))


def waits(bed: WideBed) -> list[float]:
    """For how long each client with a request in flight has got nothing."""
    now = time.monotonic()
    asked = [each for each in bed.client("harness", do="status")["clients"] if each["state"] in ("sent", "streaming")]
    return [now - max(each["sent_at_monotonic"], each["last_byte_monotonic"]) for each in asked]


@pytest.mark.parametrize(("state", "code"), [("none", "NOT_STUCK"), ("idle", "IDLE")])
def test_health(bed: WideBed, agent: Daemon, tmp_path: Path, state: str, code: str) -> None:
    bed.enter(state)
    bed.wait_wedged()
    assert told(look(agent, tmp_path, *bed.pids.all())) == (code, [])


@pytest.mark.parametrize(
    "part", ["a tokenizer worker", "a scheduler", "the controller"], ids=["worker", "scheduler", "controller"]
)
def test_a_part_that_is_stopped(bed: WideBed, agent: Daemon, tmp_path: Path, part: str) -> None:
    pids = bed.pids.engines[NAME]
    pid = {"a tokenizer worker": pids.workers[1], "a scheduler": pids.schedulers[1]}.get(part, pids.controller)
    assert pid is not None
    bed.enter("none")
    bed.wait_wedged()
    os.kill(pid, signal.SIGSTOP)
    try:
        bed.wait_for("a client to wait", lambda: some_wait(bed), timeout_s=60)
        snapshot = look(agent, tmp_path, *bed.pids.all())
        assert told(snapshot) == ("PROCESS_STOPPED", [pid]), snapshot["verdict"]["summary"]
    finally:
        os.kill(pid, signal.SIGCONT)
    bed.enter("idle")


@pytest.mark.parametrize(
    ("fault", "code"), [("block-sleep", "ENGINE_HTTP_BLOCKED"), ("silent", "ENGINE_HANDOFF")], ids=["blocked", "silent"]
)
def test_one_worker_of_two(bed: WideBed, agent: Daemon, tmp_path: Path, fault: str, code: str) -> None:
    bed.enter("none")
    bed.wait_wedged()
    bed.engines[NAME].http(do="set", fault=fault, worker=1)
    bed.wait_for("a client to wait", lambda: some_wait(bed), timeout_s=60)
    # What its twin and the other engine serve comes to an end.
    bed.client("harness", do="pause")
    bed.wait_for("the others to be served", lambda: only_those_wait(bed))
    snapshot = look(agent, tmp_path, *bed.pids.all())
    assert told(snapshot) == (code, [bed.pids.engines[NAME].workers[1]]), snapshot["verdict"]["summary"]
    bed.enter("idle")
