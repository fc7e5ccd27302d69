"""Harness, router, prefill and decode on four hosts with an agent each and clocks that are off: one verdict over all.

What a host is here, and what it cannot stand in for, is in `tests.bed.hosts`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from freezeframe.judge import file
from freezeframe.v1 import process_pb2
from tests.bed.hosts import AHEAD_MS, Client, HostsBed
from tests.e2e.table import HEALTHY, TABLE

pytestmark = [pytest.mark.needs("root", "e2e", "gcc"), pytest.mark.timeout(300)]

REPETITIONS = int(os.environ.get("FREEZEFRAME_REPETITIONS", "1"))
WEDGES = (
    "router-dual-leg", "decode-silent", "prefill-silent", "engine-loop-blocked", "engine-not-accepting",
    "scheduler-stopped", "scheduler-queue", "pd-bootstrap", "stream-stalls-after-5-tokens", "router-stopped",
    "client-not-reading",
)  # fmt: skip
# `make e2e` takes all of them; every other run some, and fewer of these with a host missing.
SOME = WEDGES if REPETITIONS > 1 else WEDGES[::3]
STATES = ("none", "idle")
WITHOUT_A_HOST = (*WEDGES, *STATES) if REPETITIONS > 1 else (*WEDGES[:2], "none")
_PATIENCE_S = 20.0
_CAPTURED, _IN_PART = 0, 4


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a fleet snapshot says."""

    verdict: dict[str, Any]
    manifest: file.Manifest
    hosts: tuple[Any, ...]
    exit_code: int

    @property
    def accused(self) -> tuple[str, set[tuple[str, int]]]:
        """Code, and holders by host and the pid that they have there."""
        verdict = self.verdict
        return verdict["code"], set(zip(verdict["holder_hosts"], verdict["holder_pids"], strict=True))

    def __str__(self) -> str:
        return f"{self.accused}: {self.verdict['summary']} {self.verdict['unknowns']}"


@pytest.fixture(scope="module")
def bed() -> Iterator[HostsBed]:
    with HostsBed.start(wedge="idle") as running:
        assert isinstance(running, HostsBed)
        yield running


@pytest.fixture(scope="module")
def client(bed: HostsBed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with bed.agents(tmp_path_factory.mktemp("agents")) as started:
        yield started


def snap(client: Client, folder: Path) -> Told:
    done = client.run("--output", "json", "snap", "--group", "all", "-o", "all.ffz", cwd=folder)
    assert done.returncode in (_CAPTURED, _IN_PART), done.stderr
    contents = file.read((folder / "all.ffz").read_bytes())
    verdict = json.loads(done.stdout)["fleet"]["verdict"]
    return Told(verdict=verdict, manifest=contents.manifest, hosts=contents.hosts, exit_code=done.returncode)


def look(client: Client, folder: Path) -> Told:
    """As in test_verdicts: silence of ten seconds tells what that of three does not."""
    told = snap(client, folder)
    give_up = time.monotonic() + _PATIENCE_S
    while told.verdict["code"] == "UNDETERMINED" and time.monotonic() < give_up:
        told = snap(client, folder)
    return told


def truth(bed: HostsBed, wedge: str) -> tuple[str, set[tuple[str, int]]]:
    expected = TABLE[wedge][bed.router.product]
    return expected.code, {bed.on_host(pid) for pid in expected.pids(bed.pids)}


@pytest.mark.parametrize("repetition", range(REPETITIONS))
@pytest.mark.parametrize("wedge", SOME)
def test_who_holds_the_requests_and_on_which_host(
    bed: HostsBed, client: Client, wedge: str, repetition: int, tmp_path: Path
) -> None:
    bed.enter(wedge)
    bed.wait_wedged(settled=True)
    told = look(client, tmp_path)
    assert told.accused == truth(bed, wedge), str(told)


@pytest.mark.parametrize("repetition", range(REPETITIONS))
@pytest.mark.parametrize("state", STATES)
def test_nobody_is_accused_where_nothing_is_wrong(
    bed: HostsBed, client: Client, state: str, repetition: int, tmp_path: Path
) -> None:
    bed.enter(state)
    bed.wait_wedged()
    told = look(client, tmp_path)
    code, holders = told.accused
    assert (code in HEALTHY[state], holders) == (True, set()), str(told)


@pytest.mark.parametrize("wedge", WITHOUT_A_HOST)
def test_a_host_that_is_not_reached_is_unknown_and_nobody_else_is_accused(
    bed: HostsBed, client: Client, wedge: str, tmp_path: Path
) -> None:
    bed.enter(wedge)
    bed.wait_wedged(settled=wedge in TABLE)
    with bed.unreachable("decode"):
        told = snap(client, tmp_path)
    assert told.exit_code == _IN_PART
    assert [each.host for each in told.manifest.missing] == ["decode"]
    assert told.verdict["unknowns"][0].startswith("decode brought nothing: connecting to decode: "), told
    code, holders = told.accused
    assert not holders or (wedge in TABLE and (code, holders) == truth(bed, wedge)), str(told)
    assert code != "NOT_STUCK" or wedge == "none", str(told)


def test_each_agent_sees_its_own_host_and_how_its_clock_stands(bed: HostsBed, client: Client, tmp_path: Path) -> None:
    bed.enter("decode-silent")
    bed.wait_wedged(settled=True)
    told = look(client, tmp_path)
    assert told.accused == truth(bed, "decode-silent"), str(told)
    engine = {"ENGINE_HTTP", "SCHEDULER", "DETOKENIZER"}
    own = {"harness": {"CLIENT"}, "router": {"ROUTER"}, "prefill": engine, "decode": engine}
    for part, snapshot in zip(told.manifest.hosts, told.hosts, strict=True):
        host = part.asked
        assert part.meta.host == host
        roles = {process_pb2.Process.Role.Name(process.role) for process in snapshot.processes} - {"OTHER"}
        assert roles == own[host]
        assert abs(part.ahead_ms - AHEAD_MS[host]) <= part.ahead_error_ms + 5
    # The agent of the harness alone could not tell whom it belongs to.
    (row,) = told.verdict["attribution"]
    assert (row["host"], row["pid"]) == bed.on_host(bed.pids.harness)
    assert row["requests_in_flight"] == bed.clients
