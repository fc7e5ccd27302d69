"""Paths of other shapes: a proxy or a router in front, two engines of which one hangs, clients in Node and Go."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed.bed import Bed
from tests.bed.fronts import NGINX, ChainedBed, NginxBed
from tests.support.command import snap
from tests.support.daemon import Daemon, running_daemon

pytestmark = [pytest.mark.needs("root", "e2e"), pytest.mark.timeout(300)]

ALONE = not os.environ.get("FREEZEFRAME_SHARED_MACHINE")
PROGRAMS = Path(__file__).parents[1] / "programs"
needs_nginx = pytest.mark.skipif(NGINX is None, reason="no nginx here")
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="no node here")


@pytest.fixture(scope="module")
def agent() -> Iterator[Daemon]:
    with running_daemon() as started:
        yield started


@pytest.fixture(scope="module")
def behind_nginx() -> Iterator[NginxBed]:
    with NginxBed.start(wedge="idle") as bed:
        assert isinstance(bed, NginxBed)
        yield bed


@pytest.fixture(scope="module")
def chained() -> Iterator[ChainedBed]:
    with ChainedBed.start(wedge="idle") as bed:
        assert isinstance(bed, ChainedBed)
        yield bed


def look(agent: Daemon, folder: Path, *pids: int) -> dict[str, Any]:
    """A snapshot; on a loaded machine another one where the first could not tell, as a user would take one."""
    own = [] if ALONE else [word for pid in pids for word in ("-p", str(pid))]
    for _ in range(3):
        snapshot = snap(agent.address, *own, cwd=folder)
        if snapshot["verdict"]["code"] != "UNDETERMINED":
            break
    return snapshot


def told(snapshot: dict[str, Any]) -> tuple[str, list[int]]:
    return snapshot["verdict"]["code"], snapshot["verdict"]["holder_pids"]


@needs_nginx
@pytest.mark.parametrize(
    ("wedge", "code", "holder"),
    [
        ("router-dual-leg", "ROUTER_DUAL_LEG", "router"),
        ("decode-silent", "ENGINE_HANDOFF", "decode.http"),
        ("router-stopped", "PROCESS_STOPPED", "router"),
        ("scheduler-stopped", "PROCESS_STOPPED", "decode.scheduler"),
    ],
)
def test_behind_nginx(
    behind_nginx: NginxBed, agent: Daemon, tmp_path: Path, wedge: str, code: str, holder: str
) -> None:
    bed = behind_nginx
    bed.enter(wedge)
    bed.wait_wedged(settled=True)
    snapshot = look(agent, tmp_path, *bed.pids.all(), bed.front_pid, bed.worker_pid)
    pid = bed.pids.router if holder == "router" else getattr(bed.pids.decode, holder.partition(".")[2])
    assert told(snapshot) == (code, [pid]), snapshot["verdict"]["summary"]
    # Whose requests these are is told through the proxy.
    assert {each.get("pid") for each in snapshot["verdict"]["attribution"]} == {bed.pids.harness}
    assert "nginx" not in snapshot["verdict"]["summary"]


@needs_nginx
def test_an_nginx_that_is_stopped(behind_nginx: NginxBed, agent: Daemon, tmp_path: Path) -> None:
    bed = behind_nginx
    bed.enter("none")
    bed.wait_wedged()
    worker = bed.worker_pid
    os.kill(worker, signal.SIGSTOP)
    try:
        bed.wait_for("every client to wait", lambda: bed.client("harness", do="status")["in_flight"] == bed.clients)
        assert told(look(agent, tmp_path, *bed.pids.all(), bed.front_pid, worker)) == ("PROCESS_STOPPED", [worker])
    finally:
        os.kill(worker, signal.SIGCONT)
    bed.enter("idle")


@needs_nginx
@pytest.mark.parametrize(("state", "code"), [("none", "NOT_STUCK"), ("idle", "IDLE")])
def test_health_behind_nginx(behind_nginx: NginxBed, agent: Daemon, tmp_path: Path, state: str, code: str) -> None:
    bed = behind_nginx
    bed.enter(state)
    bed.wait_wedged()
    assert told(look(agent, tmp_path, *bed.pids.all(), bed.front_pid, bed.worker_pid)) == (code, [])


@pytest.mark.parametrize(
    ("wedge", "code", "holder"),
    [("router-dual-leg", "ROUTER_DUAL_LEG", "router"), ("decode-silent", "ENGINE_HANDOFF", "http")],
)
def test_two_routers_in_a_row(
    chained: ChainedBed, agent: Daemon, tmp_path: Path, wedge: str, code: str, holder: str
) -> None:
    chained.enter(wedge)
    chained.wait_wedged(settled=True)
    pids = chained.pids
    expected = pids.router if holder == "router" else getattr(pids.decode, holder)
    snapshot = look(agent, tmp_path, *pids.all(), chained.front_pid)
    assert told(snapshot) == (code, [expected]), snapshot["verdict"]["summary"]


def test_a_first_router_that_is_stopped(chained: ChainedBed, agent: Daemon, tmp_path: Path) -> None:
    chained.enter("none")
    chained.wait_wedged()
    os.kill(chained.front_pid, signal.SIGSTOP)
    try:
        wait = lambda: chained.client("harness", do="status")["in_flight"] == chained.clients  # noqa: E731
        chained.wait_for("every client to wait", wait)
        found = told(look(agent, tmp_path, *chained.pids.all(), chained.front_pid))
        assert found == ("PROCESS_STOPPED", [chained.front_pid])
    finally:
        os.kill(chained.front_pid, signal.SIGCONT)
    chained.enter("idle")


@pytest.mark.parametrize(
    ("wedge", "code", "part"),
    [("engine-silent", "ENGINE_HANDOFF", "http"), ("scheduler-stopped", "PROCESS_STOPPED", "scheduler")],
)
def test_one_of_two_engines(agent: Daemon, tmp_path: Path, wedge: str, code: str, part: str) -> None:
    """The holder is named by pid and address, the healthy one is ruled out."""
    with Bed.start(wedge="idle", regular=True) as bed:
        bed.enter(wedge, engine="engine1")
        bed.wait_wedged(settled=True)
        snapshot = look(agent, tmp_path, *bed.pids.all())
        assert told(snapshot) == (code, [getattr(bed.pids.engines["engine1"], part)]), snapshot["verdict"]["summary"]
        healthy = bed.pids.engines["engine0"].http
        words = [each["hop"] for each in snapshot["verdict"]["ruled_out"]]
        assert f"engine (pid {healthy})" in words


@needs_node
def test_a_client_in_node(agent: Daemon, tmp_path: Path) -> None:
    client_of_another_kind(agent, tmp_path, ["node", str(PROGRAMS / "client.mjs")])


@pytest.mark.needs("go")
def test_a_client_in_go(agent: Daemon, tmp_path: Path) -> None:
    program = str(tmp_path / "go-client")
    # Without C it needs no compiler of that.
    env = {**os.environ, "CGO_ENABLED": "0", "GOCACHE": str(tmp_path / "cache"), "GOFLAGS": "-p=2"}
    subprocess.run(["go", "build", "-o", program, str(PROGRAMS / "client.go")], check=True, cwd=tmp_path, env=env)
    client_of_another_kind(agent, tmp_path, [program])


def client_of_another_kind(agent: Daemon, folder: Path, program: list[str]) -> None:
    """It has 12 requests in flight beside those of the harness, and is told apart from it."""
    with Bed.start(wedge="idle") as bed:
        bed.enter("decode-silent")
        bed.wait_wedged(settled=True)
        command = [*program, f"{bed.url}/v1/chat/completions", "12"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as client:
            try:
                assert client.stdout is not None
                assert client.stdout.readline() == "asked\n"
                bed.wait_for("its requests to reach decode", lambda: held(bed) == bed.clients + 12)
                snapshot = look(agent, folder, *bed.pids.all(), client.pid)
            finally:
                client.kill()
        assert told(snapshot) == ("ENGINE_HANDOFF", [bed.pids.decode.http])
        (row,) = [each for each in snapshot["verdict"]["attribution"] if each.get("pid") == client.pid]
        assert row["requests_in_flight"] == 12


def held(bed: Bed) -> int:
    count: int = bed.engines["decode"].http(do="status")["silenced"]
    return count
