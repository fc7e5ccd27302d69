"""Copies of what the daemon keeps, on a server that speaks S3."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.support.command import freezeframe, snap
from tests.support.daemon import Daemon, running_daemon
from tests.support.s3_server import CREDENTIALS, s3_server

pytestmark = [pytest.mark.needs("root", "s3"), pytest.mark.timeout(300)]

PID = str(os.getpid())


def doctor(agent: Daemon, folder: Path) -> dict[str, str]:
    done = freezeframe("--output", "json", "doctor", agent.address, cwd=folder)
    (found,) = [each for each in json.loads(done.stdout)["capabilities"] if each["name"] == "copy"]
    return {name: found[name] for name in ("state", "detail", "hint")}


def test_what_is_captured_arrives_and_doctor_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    config = tmp_path / "agentd.toml"
    with s3_server() as server:
        config.write_text(f'[copy]\nto = "s3://captures/gpu"\nendpoint = "{server.endpoint}"\n')
        with running_daemon("--config", str(config)) as agent:
            snapshot_id = snap(agent.address, "--window", "0", "-p", PID, "-o", "a.ffz", cwd=tmp_path)["meta"][
                "snapshot_id"
            ]
            deadline = time.monotonic() + 60
            while doctor(agent, tmp_path)["state"] != "LIMITED":
                assert time.monotonic() < deadline
            waits = doctor(agent, tmp_path)
            assert "NoSuchBucket" in waits["detail"]
            assert waits["detail"].endswith("; 1 to copy to s3://captures/gpu, 0 copied since the agent began")
            assert waits["hint"] == "make the bucket, or correct copy.to"
            server.make("captures")
            while doctor(agent, tmp_path)["detail"] != "0 to copy to s3://captures/gpu, 1 copied since the agent began":
                assert time.monotonic() < deadline
            assert doctor(agent, tmp_path)["state"] == "PRESENT"
            assert server.names("captures") == [f"gpu/{snapshot_id}.ffz"]
            assert server.read("captures", f"gpu/{snapshot_id}.ffz") == (tmp_path / "a.ffz").read_bytes()


def test_a_directory_that_is_not_there_costs_no_capture(tmp_path: Path) -> None:
    config = tmp_path / "agentd.toml"
    config.write_text('[copy]\nto = "file:///nowhere"\n')
    with running_daemon("--config", str(config)) as agent:
        snap(agent.address, "--window", "0", "-p", PID, "-o", "a.ffz", cwd=tmp_path)
        deadline = time.monotonic() + 60
        while doctor(agent, tmp_path)["state"] != "LIMITED":
            assert time.monotonic() < deadline
        assert doctor(agent, tmp_path)["hint"] == "make the directory, for the agent to write, or mount it"
