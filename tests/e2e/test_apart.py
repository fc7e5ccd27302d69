"""An engine in a container, named by the host's pids, and a harness on another host, known by its address only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed.apart import ContainedBed, RemoteHarnessBed
from tests.e2e.test_topologies import look, told
from tests.support.daemon import Daemon, running_daemon

pytestmark = [pytest.mark.needs("root", "e2e"), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def contained() -> Iterator[ContainedBed]:
    with ContainedBed.start(wedge="idle") as bed:
        assert isinstance(bed, ContainedBed)
        yield bed


@pytest.fixture(scope="module")
def remote() -> Iterator[RemoteHarnessBed]:
    with RemoteHarnessBed.start(wedge="idle") as bed:
        assert isinstance(bed, RemoteHarnessBed)
        yield bed


@pytest.fixture(scope="module")
def agent() -> Iterator[Daemon]:
    with running_daemon() as started:
        yield started


@pytest.fixture(scope="module")
def agent_inside(remote: RemoteHarnessBed) -> Iterator[Daemon]:
    with running_daemon(inside=remote.inside) as started:
        yield started


@pytest.mark.parametrize(
    ("state", "code", "part"),
    [
        ("decode-silent", "ENGINE_HANDOFF", "http"),
        ("scheduler-stopped", "PROCESS_STOPPED", "scheduler"),
        ("none", "NOT_STUCK", ""),
        ("idle", "IDLE", ""),
    ],
)
def test_engines_in_containers(
    contained: ContainedBed, agent: Daemon, tmp_path: Path, state: str, code: str, part: str
) -> None:
    contained.enter(state)
    contained.wait_wedged(settled=bool(part))
    decode = contained.pids.decode
    snapshot = look(agent, tmp_path, *contained.pids.all())
    assert told(snapshot) == (code, [getattr(decode, part)] if part else []), snapshot["verdict"]["summary"]
    found = {each["pid"]: each["container"] for each in snapshot["processes"]}
    assert {found.get(pid) for pid in decode.all()} == {contained.containers["decode"]}


@pytest.mark.parametrize(
    ("state", "code", "holder"),
    [
        ("router-dual-leg", "ROUTER_DUAL_LEG", "router"),
        ("decode-silent", "ENGINE_HANDOFF", "decode"),
        ("none", "NOT_STUCK", ""),
        ("idle", "IDLE", ""),
    ],
)
def test_a_harness_on_another_host(
    remote: RemoteHarnessBed, agent_inside: Daemon, tmp_path: Path, state: str, code: str, holder: str
) -> None:
    remote.enter(state)
    remote.wait_wedged(settled=bool(holder))
    pids = {"router": [remote.pids.router], "decode": [remote.pids.decode.http], "": []}
    snapshot = look(agent_inside, tmp_path)
    assert told(snapshot) == (code, pids[holder]), snapshot["verdict"]["summary"]
    address = remote.places["harness"].address
    row = next(each for each in snapshot["verdict"]["attribution"] if each["client"] == address)
    assert "pid" not in row
    if holder:
        assert row["requests_in_flight"] == remote.clients
