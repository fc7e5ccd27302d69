"""Ranks that diverge, as the whole agent sees them: roles, sockets, stacks, verdict; and after they went on."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import freezeframe
from tests.support.daemon import Daemon, running_daemon
from tests.support.ranks import Ranks, ranks

pytestmark = pytest.mark.needs("root", "e2e")

REQUEST = b"POST /generate HTTP/1.1\r\nhost: engine\r\ncontent-length: 2\r\n\r\n{}"


@pytest.fixture(scope="module")
def agent() -> Iterator[Daemon]:
    with running_daemon() as daemon:
        yield daemon


def snapshot(agent: Daemon, engine: Ranks, folder: Path) -> dict[str, Any]:
    pids = [word for pid in (engine.process.pid, *engine.pids) for word in ("-p", str(pid))]
    done = freezeframe("--output", "json", "snap", agent.address, *pids, "-o", "a.ffz", cwd=folder)
    assert done.returncode in (0, 4), done.stderr
    return json.loads(done.stdout)


def test_ranks_that_diverge_hold_what_the_engine_owes(agent: Daemon, tmp_path: Path) -> None:
    with ranks(4) as engine:
        engine.take("diverge")
        clients = [socket.create_connection(("127.0.0.1", engine.port)) for _ in range(5)]
        for client in clients:
            client.sendall(REQUEST)
        engine.asleep(*engine.pids)
        give_up = time.monotonic() + 40
        while (seen := snapshot(agent, engine, tmp_path))["verdict"]["code"] != "RANKS_DIVERGED":
            assert time.monotonic() < give_up, seen["verdict"]
        verdict = seen["verdict"]
        assert (verdict["hop"], verdict["holder_pids"], verdict["confidence"]) == (
            "scheduler", [engine.pids[3]], "HIGH",
        )  # fmt: skip
        assert [(rank["rank"], rank["phase"], rank["minority"]) for rank in seen["ranks"]] == [
            ("TP3", "all_reduce", True), ("TP0", "broadcast", False), ("TP1", "broadcast", False),
            ("TP2", "broadcast", False),
        ]  # fmt: skip
        page = freezeframe("show", "a.ffz", "ranks", cwd=tmp_path).stdout.splitlines()
        assert page[2].split()[:3] == ["TP3", str(engine.pids[3]), "all_reduce"]
        assert page[3].split()[0] == "TP0-2"
        engine.take("idle")
        engine.asleep(*engine.pids[1:])
        after = snapshot(agent, engine, tmp_path)
        assert "RANKS_DIVERGED" not in [finding["code"] for finding in after["findings"]]
        for client in clients:
            client.close()
