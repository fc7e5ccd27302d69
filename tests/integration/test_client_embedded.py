"""The client with the real agent: a private one of its own, and a daemon."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import freezeframe
from tests.support.daemon import Daemon, running_daemon

TIMEOUT_S = 60


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where private agents of this test live."""
    with tempfile.TemporaryDirectory(prefix="ff-") as name:
        monkeypatch.setenv("XDG_RUNTIME_DIR", name)
        yield Path(name)


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon() as agent:
        yield agent


def agents_in(folder: Path) -> list[int]:
    """Processes that name the folder in their command line."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            command_line = Path(f"/proc/{entry}/cmdline").read_bytes() if entry.isdecimal() else b""
        except OSError:
            continue
        if os.fsencode(folder) in command_line:
            found.append(int(entry))
    return found


def gone(folder: Path) -> bool:
    deadline = time.monotonic() + TIMEOUT_S
    while agents_in(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not agents_in(folder)


def test_an_embedded_capture_leaves_a_file_and_nothing_else(runtime: Path, tmp_path: Path) -> None:
    done = freezeframe("--output", "json", "snap", "--embedded", "--window", "0", "--note", "n", cwd=tmp_path)
    assert done.returncode in (0, 4), done.stderr
    meta = json.loads(done.stdout)["meta"]
    assert (meta["embedded"], meta["note"], meta["window_ms"]) == (True, "n", 0.0)
    (saved,) = os.listdir(tmp_path)
    assert done.stderr.splitlines()[-1] == saved
    assert gone(runtime)
    assert os.listdir(runtime) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_private_agent_ends_with_its_client(runtime: Path, tmp_path: Path, number: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "freezeframe.client", "snap", "--embedded", "--window", "30", "--deadline", "40"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        deadline = time.monotonic() + TIMEOUT_S
        while not list(runtime.glob("*/capture.sock")) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert agents_in(runtime)
        process.send_signal(number)
        process.communicate(timeout=TIMEOUT_S)
    # -SIGINT: the interrupt came where Python itself ends the process by it; a shell shows 130 for both.
    ends = {signal.SIGINT: (130, -signal.SIGINT), signal.SIGTERM: (143,), signal.SIGKILL: (-signal.SIGKILL,)}
    assert process.returncode in ends[signal.Signals(number)]
    assert gone(runtime)
    if number != signal.SIGKILL:
        assert os.listdir(runtime) == []


def test_a_daemons_snapshots_from_capture_to_deletion(daemon: Daemon, tmp_path: Path) -> None:
    done = freezeframe("snap", "--window", "0", daemon.address, "-o", "one.ffz", cwd=tmp_path)
    assert done.returncode in (0, 4), done.stderr
    assert done.stderr.splitlines()[-1] == "one.ffz"
    snapshot_id = json.loads(freezeframe("show", "one.ffz", "--output", "json", cwd=tmp_path).stdout)["meta"][
        "snapshot_id"
    ]
    listed = freezeframe("list", "--output", "brief", daemon.address, cwd=tmp_path)
    assert listed.stdout.splitlines() == [snapshot_id]
    assert freezeframe("get", "latest", daemon.address, "-o", "two.ffz", cwd=tmp_path).returncode in (0, 4)
    assert (tmp_path / "one.ffz").read_bytes() == (tmp_path / "two.ffz").read_bytes()
    deleted = freezeframe("rm", snapshot_id, f"unix:{daemon.runtime_dir}", cwd=tmp_path)
    assert (deleted.returncode, deleted.stderr) == (0, f"Deleted {snapshot_id}.\n")
    missing = freezeframe("get", snapshot_id, daemon.address, cwd=tmp_path)
    assert missing.returncode == 3
    assert missing.stderr.startswith(f"Error: fetching {snapshot_id} from {daemon.address}: ")


def test_the_daemon_refuses_with_its_reason(daemon: Daemon, tmp_path: Path) -> None:
    unknown = freezeframe("snap", "--only", "nosuch", daemon.address, cwd=tmp_path)
    assert unknown.returncode == 2
    assert "nosuch" in unknown.stderr
    assert os.listdir(tmp_path) == []


def test_the_daemon_says_what_it_can_see(daemon: Daemon, tmp_path: Path) -> None:
    done = freezeframe("doctor", daemon.address, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nWhat can be seen\n" in done.stdout
    assert "\nTo mend\n" in done.stdout
