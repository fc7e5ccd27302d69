"""Harness, router, prefill and decode each in a network namespace of their own: the same verdicts as without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed.bed import Bed
from tests.bed.spread import PublishedBed, SpreadBed
from tests.support.command import snap
from tests.support.daemon import Daemon, running_daemon

pytestmark = [pytest.mark.needs("root", "e2e"), pytest.mark.timeout(300)]

TABLE: tuple[tuple[str, str, Callable[[Bed], list[int]]], ...] = (
    ("router-dual-leg", "ROUTER_DUAL_LEG", lambda bed: [bed.pids.router]),
    ("stray-client", "ROUTER_DUAL_LEG", lambda bed: [bed.pids.router]),
    ("engine-silent", "ENGINE_HANDOFF", lambda bed: [bed.pids.decode.http]),
    ("engine-not-accepting", "ENGINE_NOT_ACCEPTING", lambda bed: [bed.pids.decode.http]),
    ("none", "NOT_STUCK", lambda _bed: []),
    ("idle", "IDLE", lambda _bed: []),
)


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with SpreadBed.start(wedge="idle") as running:
        yield running


@pytest.fixture(scope="module")
def agent() -> Iterator[Daemon]:
    with running_daemon() as started:
        yield started


@pytest.fixture(scope="module")
def published() -> Iterator[Bed]:
    with PublishedBed.start(wedge="idle") as running:
        yield running


def snapped(agent: Daemon, folder: Path) -> dict[str, Any]:
    """A snapshot; on a loaded machine another one where the first could not tell, as a user would take one."""
    for _ in range(3):
        snapshot = snap(agent.address, cwd=folder)
        if snapshot["verdict"]["code"] != "UNDETERMINED":
            break
    return snapshot


def outcome(snapshot: dict[str, Any], collector: str) -> dict[str, Any]:
    (found,) = [each for each in snapshot["outcomes"] if each["collector"] == collector]
    return found


@pytest.mark.parametrize(("wedge", "code", "holder"), TABLE, ids=[row[0] for row in TABLE])
def test_the_same_verdict_as_without(
    bed: Bed, agent: Daemon, wedge: str, code: str, holder: Callable[[Bed], list[int]], tmp_path: Path
) -> None:
    bed.enter(wedge)
    bed.wait_wedged(settled=bool(holder(bed)))
    snapshot = snapped(agent, tmp_path)
    verdict = snapshot["verdict"]
    assert (verdict["code"], verdict["holder_pids"]) == (code, holder(bed)), verdict["summary"]
    for collector in ("snapshot_sockets", "sample_metrics"):
        assert outcome(snapshot, collector)["status"] == "OK"
    found = {each["pid"]: each for each in snapshot["processes"]}
    path = (bed.pids.harness, bed.pids.router, bed.pids.prefill.http, bed.pids.decode.http)
    assert len({found[pid]["netns"] for pid in path}) == 4
    if wedge != "idle":
        clients = {each["pid"] for each in verdict["attribution"]}
        assert clients == {bed.pids.harness, *([bed.pids.stray] if bed.pids.stray else [])}


@pytest.mark.parametrize(("wedge", "code", "holder"), TABLE, ids=[row[0] for row in TABLE])
def test_without_the_capability_nobody_is_accused_wrongly(
    bed: Bed, wedge: str, code: str, holder: Callable[[Bed], list[int]], tmp_path: Path
) -> None:
    bed.enter(wedge)
    bed.wait_wedged(settled=bool(holder(bed)))
    with running_daemon(without=("sys_admin",)) as limited:
        snapshot = snap(limited.address, cwd=tmp_path)
    sockets = outcome(snapshot, "snapshot_sockets")
    assert (sockets["status"], sockets["hint"]) == ("PARTIAL", "grant CAP_SYS_ADMIN")
    assert "no ages, bytes and unix sockets" in sockets["detail"]
    verdict = snapshot["verdict"]
    assert (verdict["code"], verdict["holder_pids"]) in (
        (code, holder(bed)), ("UNDETERMINED", []),
    ), verdict["summary"]  # fmt: skip
    assert any("CAP_SYS_ADMIN" in each or "snapshot_sockets is incomplete" in each for each in verdict["unknowns"])


@pytest.mark.needs("nat")
@pytest.mark.parametrize(("wedge", "code", "holder"), TABLE, ids=[row[0] for row in TABLE])
def test_the_same_verdict_through_a_published_port(
    published: Bed, agent: Daemon, wedge: str, code: str, holder: Callable[[Bed], list[int]], tmp_path: Path
) -> None:
    published.enter(wedge)
    published.wait_wedged(settled=bool(holder(published)))
    snapshot = snapped(agent, tmp_path)
    verdict = snapshot["verdict"]
    assert (verdict["code"], verdict["holder_pids"]) == (code, holder(published)), verdict["summary"]
    harness = [each for each in snapshot["sockets"] if each.get("pid") == published.pids.harness and each["remote"]]
    assert {each["remote"] for each in harness} == {published.url.removeprefix("http://")}
    assert {each.get("peer_pid") for each in harness} == {published.pids.router}
