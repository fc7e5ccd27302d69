"""A private agent of a user who has no privilege, over that user's own real router."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from freezeframe.agentd.host import kernel_stacks
from tests.bed.processes import free_ports
from tests.support.children import PROGRAMS
from tests.support.report import until

NOBODY = 65534
AS_NOBODY = (
    "unshare", "--mount", "--propagation", "private", sys.executable, str(PROGRAMS / "as_nobody.py"), sys.executable,
)  # fmt: skip


@pytest.fixture
def folder() -> Iterator[Path]:
    """Of nobody; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="ff-") as name:
        os.chown(name, NOBODY, NOBODY)
        yield Path(name)


def listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.needs("root", "e2e")
def test_ones_own_processes_are_captured_and_each_missing_thing_says_what_grants_it(folder: Path) -> None:
    (port,) = free_ports(1)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    options: dict[str, Any] = {"cwd": folder, "env": environment}
    launch = ("-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port))
    launch += ("--worker-urls", "http://127.0.0.1:1")
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen((*AS_NOBODY, *launch), stdout=log, stderr=log, **options) as router,
    ):
        try:
            until(lambda: listens(port), seconds=30.0)
            command = (
                *AS_NOBODY,
                "-m",
                "freezeframe.client",
                "--output",
                "json",
                "snap",
                "--embedded",
                "--window",
                "0",
            )
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)
        finally:
            router.kill()
    assert done.returncode == 4, done.stderr
    snapshot = json.loads(done.stdout)
    process = next(each for each in snapshot["processes"] if each["pid"] == router.pid)
    assert (process["role"], process["product"]) == ("ROUTER", "sglang-router")
    assert [thread["frames"][-1]["function"] for thread in snapshot["python_threads"] if thread["pid"] == router.pid]
    listening = {
        each["local"] for each in snapshot["sockets"] if (each["pid"], each["state"]) == (router.pid, "LISTEN")
    }
    assert f"127.0.0.1:{port}" in listening
    asked = {(e["path"], e["status"]) for e in snapshot["endpoints"] if e["address"] == f"127.0.0.1:{port}"}
    assert {("/liveness", 200), ("/readiness", 503)} <= asked
    outcomes = {outcome["collector"]: outcome for outcome in snapshot["outcomes"]}
    # Other users run something here, whose executables are theirs.
    assert outcomes["find_processes"]["status"] == "PARTIAL"
    assert {o["hint"] for o in outcomes.values() if o["status"] == "PARTIAL"} == {
        "run the agent as root or grant CAP_SYS_PTRACE",
        kernel_stacks.HINT,
        "run the agent as root, or grant CAP_BPF and CAP_PERFMON",
    }
