"""Secrets of a running program reach no report, no audit line and no log of the agent."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.command import freezeframe
from tests.support.daemon import running_daemon
from tests.support.planted import FORMS, KINDS, found, written

pytestmark = [pytest.mark.needs("root", "kernel", "e2e"), pytest.mark.timeout(480)]

PROGRAM = Path(__file__).parents[1] / "programs" / "leaky_router.py"
TEXTS = [written(kind, form) for kind in KINDS for form in FORMS]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], int]]:
    folder = tmp_path / "work"
    folder.mkdir()
    program = shutil.copy(PROGRAM, folder)
    environment = {f"SOME_SETTING_{number}": text for number, text in enumerate(TEXTS)}
    started: list[subprocess.Popen[str]] = []

    def start_() -> int:
        child = subprocess.Popen(
            ["leaky-router", program, *TEXTS], executable=sys.executable, cwd=folder, env={**os.environ, **environment},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(child)
        assert child.stdout is not None
        return int(child.stdout.readline())

    yield start_
    for child in started:
        child.communicate()
        assert child.returncode == 0


def test_no_report_no_audit_and_no_log_has_a_secret_of_a_program(start: Callable[[], int], tmp_path: Path) -> None:
    config = tmp_path / "agentd.toml"
    config.write_text('[[roles]]\nrole = "router"\ntitle = "leaky-router"\n')
    said: dict[str, str] = {}

    def run(*arguments: str) -> str:
        done = freezeframe(*arguments, cwd=tmp_path, timeout_s=120)
        assert done.returncode in (0, 4), done.stderr
        said[f"stderr of {arguments}"] = done.stderr
        return done.stdout

    with running_daemon("--config", str(config)) as agent:
        give_up = time.monotonic() + 150
        while (done := freezeframe("watch", "--count", "1", agent.address, cwd=tmp_path)).returncode != 0:
            assert time.monotonic() < give_up, done.stderr
        pid = start()
        # A stack that could not be read on a busy machine is read at the next look.
        give_up = time.monotonic() + 120
        while True:
            taken = json.loads(
                run("--output", "json", "snap", "-p", str(pid), "--deadline", "60", "-o", "one.ffz", agent.address)
            )
            if len(taken["python_threads"]) > len(TEXTS) <= len(taken["requests"]):
                break
            assert time.monotonic() < give_up, taken["outcomes"]
        for form in ("issue.md", "report.html", "bundle.tgz"):
            run("report", "one.ffz", "-o", form)
        said["log and audit of the agent"] = agent.log.read_text()
    for form in ("issue.md", "report.html"):
        said[form] = (tmp_path / form).read_text(encoding="utf-8")
    with tarfile.open(tmp_path / "bundle.tgz") as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / "freezeframe-report"
    said["snapshot of the bundle"] = run("--output", "json", "show", str(root / "snapshot.ffz"))
    said.update({path.name: path.read_text(encoding="utf-8") for path in root.iterdir() if path.suffix != ".ffz"})
    # It was looked at: names of threads, files of frames and logs have them in what the agent keeps for its host.
    for kind in KINDS:
        assert found(kind, json.dumps(taken["python_threads"])), kind
        assert found(kind, json.dumps(taken["log_sources"])), kind
    # Arguments, environment, headers, queries, text of logs and local variables never leave the program's host.
    for part in ("meta", "log_findings", "sockets", "verdict", "metrics"):
        assert {kind for kind in KINDS if found(kind, json.dumps(taken[part]))} == set(), part
    shown = json.loads(said["snapshot of the bundle"])
    assert [each["pid"] for each in shown["processes"]] == [pid]
    assert len(shown["requests"]) >= len(TEXTS)
    assert len(shown["python_threads"]) > len(TEXTS)
    assert "Capture" in said["log and audit of the agent"]
    assert {(where, kind): each for where, text in said.items() for kind in KINDS if (each := found(kind, text))} == {}
