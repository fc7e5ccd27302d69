"""A profile as its user takes it: captured, shown, exported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.children import program
from tests.support.command import freezeframe

pytestmark = pytest.mark.needs("root", "bpf", "e2e")


def test_a_profile_is_taken_shown_and_exported(tmp_path: Path) -> None:
    with program("python_stacks.py", "spin") as process:
        # One command line, and no recorder's programs to wait for.
        done = freezeframe(
            "snap", "--embedded", "--profile", "2", "-p", str(process.pid), "--only", "snapshot_processes",
            "-o", "a.ffz", cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode in (0, 4), done.stderr
    shown = freezeframe("show", "a.ffz", "profile", "--output", "json", cwd=tmp_path)
    threads = json.loads(shown.stdout)["profile"]
    busiest = max(threads, key=lambda thread: thread["cpu_ms"])
    assert busiest["pid"] == process.pid
    assert busiest["stacks"][0]["frames"][0]["function"]
    functions = {frame["function"] for stack in busiest["stacks"] for frame in stack["frames"] if frame["python"]}
    assert "spin" in functions
    page = freezeframe("show", "a.ffz", "profile", cwd=tmp_path).stdout
    assert "samples a second of CPU time" in page
    assert "[python] spin" in page
    folded = freezeframe("export", "a.ffz", "--to", "folded", cwd=tmp_path).stdout
    assert all(line.rpartition(" ")[2].isdigit() for line in folded.splitlines())
    assert ";spin (python_stacks.py:" in folded
    exported = freezeframe("export", "a.ffz", "--to", "speedscope", "-o", "a.json", cwd=tmp_path)
    assert exported.returncode == 0
    document = json.loads((tmp_path / "a.json").read_text())
    assert {profile["unit"] for profile in document["profiles"]} == {"milliseconds"}


def test_a_profile_longer_than_the_agent_allows_is_refused(tmp_path: Path) -> None:
    done = freezeframe("snap", "--embedded", "--profile", "90", "-o", "a.ffz", cwd=tmp_path)
    assert done.returncode == 2
    assert "--profile 90 is more than this agent allows (30 s)" in done.stderr
