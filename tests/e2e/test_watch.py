"""The live view over the real router."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed.bed import Bed
from tests.support.command import freezeframe
from tests.support.daemon import Daemon, running_daemon

pytestmark = [pytest.mark.needs("root", "kernel", "e2e"), pytest.mark.timeout(180)]


def edges(look: dict[str, Any]) -> dict[tuple[int, int], dict[str, Any]]:
    return {(each.get("client_pid", 0), each.get("server_pid", 0)): each for each in look["edges"]}


@pytest.fixture
def armed(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon whose recorder watches: what begins from now on is seen."""
    with running_daemon() as agent:
        give_up = time.monotonic() + 60
        while (done := freezeframe("watch", "--count", "1", agent.address, cwd=tmp_path)).returncode != 0:
            assert time.monotonic() < give_up, done.stderr
        yield agent


def test_edges_with_their_requests_and_who_is_at_their_ends(armed: Daemon, tmp_path: Path) -> None:
    with Bed.start(wedge="stray-client") as bed:
        bed.wait_wedged(settled=True)
        pids = bed.pids
        assert pids.stray is not None
        wanted = {(pids.harness, pids.router), (pids.router, pids.prefill.http), (pids.stray, pids.decode.http)}
        give_up = time.monotonic() + 60
        while True:
            # Who is at the other end is looked up at leisure; the newest look counts.
            done = freezeframe("--output", "json", "watch", "--count", "3", armed.address, cwd=tmp_path)
            found = [json.loads(line) for line in done.stdout.splitlines()]
            if found and wanted <= edges(found[-1]).keys():
                break
            assert time.monotonic() < give_up, done.stdout + done.stderr
        seen = edges(found[-1])
        assert seen[pids.harness, pids.router]["owed"] == 30
        assert seen[pids.router, pids.prefill.http]["owed"] == 30
        assert seen[pids.stray, pids.decode.http]["owed"] == 1
        assert seen[pids.harness, pids.router]["bytes_down_per_s"] == 0.0
        assert seen[pids.stray, pids.decode.http]["bytes_down_per_s"] > 0
        roles = {each["pid"]: (each["role"], each["disaggregation"]) for each in found[-1]["processes"]}
        assert roles[pids.harness] == ("CLIENT", "")
        assert roles[pids.router] == ("ROUTER", "")
        assert roles[pids.decode.http] == ("ENGINE_HTTP", "decode")
        plain = freezeframe("watch", "--count", "1", armed.address, cwd=tmp_path).stdout
        assert f"client {pids.harness} > router {pids.router}  in flight 30" in plain
        assert f"router {pids.router} prefill {pids.prefill.http} 30" in on_a_terminal(armed, tmp_path)


def on_a_terminal(agent: Daemon, folder: Path) -> str:
    """What `watch` shows on a terminal until it is interrupted, which is its regular end."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    command = [sys.executable, "-m", "freezeframe.client", "watch", agent.address]
    with subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=theirs, cwd=folder, env=environment) as process:
        os.close(theirs)
        shown = b""
        give_up = time.monotonic() + 30
        while shown.count(b"IN FLIGHT") < 2 and time.monotonic() < give_up:
            if select.select([ours], [], [], 1.0)[0]:
                shown += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    os.close(ours)
    return re.sub(r" +", " ", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()))
