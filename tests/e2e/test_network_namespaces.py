"""Harness, router, prefill and decode each in a network namespace of their own: the same verdicts as without."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed.bed import Bed
from tests.bed.spread import PublishedBed, SpreadBed
from tests.e2e.table import HEALTHY, QUIET, TABLE
from tests.support.command import snap
from tests.support.daemon import Daemon, running_daemon

pytestmark = [pytest.mark.needs("root", "e2e"), pytest.mark.timeout(300)]

# As in test_verdicts: where other beds run on this machine, look at one's own processes only.
ALONE = not os.environ.get("FREEZEFRAME_SHARED_MACHINE")
# `make e2e` has both routers.
PRODUCTS = ("sglang-router", "smg") if os.environ.get("FREEZEFRAME_STRICT") else ("sglang-router",)
STATES = ("router-dual-leg", "stray-client", "decode-silent", "prefill-silent", "engine-not-accepting", "none", "idle")


@pytest.fixture(scope="module", params=PRODUCTS)
def bed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    with SpreadBed.start(wedge="idle", router=request.param) as running:
        yield running


@pytest.fixture(scope="module")
def published() -> Iterator[Bed]:
    with PublishedBed.start(wedge="idle") as running:
        yield running


@pytest.fixture(scope="module")
def agent() -> Iterator[Daemon]:
    with running_daemon() as started:
        yield started


def enter(bed: Bed, state: str) -> None:
    bed.enter(state)
    bed.wait_wedged(settled=state in TABLE)


def look(bed: Bed, agent: Daemon, folder: Path) -> dict[str, Any]:
    """A snapshot; on a loaded machine another one where the first could not tell, as a user would take one."""
    own = [] if ALONE else [word for pid in bed.pids.all() for word in ("-p", str(pid))]
    for _ in range(3):
        snapshot = snap(agent.address, *own, cwd=folder)
        if snapshot["verdict"]["code"] != "UNDETERMINED":
            break
    return snapshot


def allowed(bed: Bed, state: str) -> set[tuple[str, tuple[int, ...]]]:
    """Codes and holders, as without namespaces."""
    if state in HEALTHY:
        return {(code, ()) for code in QUIET}
    expected = TABLE[state][bed.router.product]
    return {(expected.code, tuple(expected.pids(bed.pids)))}


def told(snapshot: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
    return snapshot["verdict"]["code"], tuple(sorted(snapshot["verdict"]["holder_pids"]))


def outcome(snapshot: dict[str, Any], collector: str) -> dict[str, Any]:
    (found,) = [each for each in snapshot["outcomes"] if each["collector"] == collector]
    return found


@pytest.mark.parametrize("state", STATES)
def test_the_same_verdict_as_without(bed: Bed, agent: Daemon, state: str, tmp_path: Path) -> None:
    enter(bed, state)
    snapshot = look(bed, agent, tmp_path)
    assert told(snapshot) in allowed(bed, state), snapshot["verdict"]["summary"]
    for collector in ("snapshot_sockets", "sample_metrics"):
        assert "network namespace" not in outcome(snapshot, collector)["detail"]
    found = {each["pid"]: each for each in snapshot["processes"]}
    path = (bed.pids.harness, bed.pids.router, bed.pids.prefill.http, bed.pids.decode.http)
    assert len({found[pid]["netns"] for pid in path}) == 4
    engines = {each["pid"] for each in snapshot["metrics"] if each["source"].startswith("http")}
    assert engines & {bed.pids.prefill.http, bed.pids.decode.http}
    # Who sent what is known by process: no end is an address only.
    assert {each.get("pid") for each in snapshot["verdict"]["attribution"]} <= {bed.pids.harness, bed.pids.stray}


@pytest.mark.parametrize("state", STATES)
def test_without_the_capability_nobody_is_accused_wrongly(bed: Bed, state: str, tmp_path: Path) -> None:
    enter(bed, state)
    with running_daemon(without=("sys_admin",)) as limited:
        snapshot = look(bed, limited, tmp_path)
    sockets = outcome(snapshot, "snapshot_sockets")
    assert sockets["status"] == "PARTIAL"
    assert "grant CAP_SYS_ADMIN" in sockets["hint"]
    assert "no ages, bytes and unix sockets" in sockets["detail"]
    assert told(snapshot) in {*allowed(bed, state), ("UNDETERMINED", ())}, snapshot["verdict"]["summary"]
    assert any("snapshot_sockets is incomplete" in each for each in snapshot["verdict"]["unknowns"])


@pytest.mark.needs("nat")
@pytest.mark.parametrize("state", STATES)
def test_the_same_verdict_through_a_published_port(published: Bed, agent: Daemon, state: str, tmp_path: Path) -> None:
    enter(published, state)
    snapshot = look(published, agent, tmp_path)
    assert told(snapshot) in allowed(published, state), snapshot["verdict"]["summary"]
    harness = [each for each in snapshot["sockets"] if each.get("pid") == published.pids.harness and each["remote"]]
    assert {each["remote"] for each in harness} == {published.url.removeprefix("http://")}
    assert {each.get("peer_pid") for each in harness} == {published.pids.router}
