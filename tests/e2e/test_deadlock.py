"""A deadlock from the daemon to the screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.children import child
from tests.support.command import freezeframe
from tests.support.compiled import c_program
from tests.support.daemon import running_daemon

pytestmark = pytest.mark.needs("e2e", "bpf", "gcc")


def test_a_deadlock_is_the_verdict_and_its_cycle_is_spelled_out(tmp_path: Path) -> None:
    with child(c_program("locks"), "ring") as process, running_daemon() as agent:
        options = ("--window", "0", "--pid", str(process.pid), "-o", "x.ffz", "--output", "json")
        done = freezeframe("snap", *options, agent.address, cwd=tmp_path)
        snapshot = json.loads(done.stdout)
        assert snapshot["verdict"]["code"] == "DEADLOCK", done.stderr
        assert snapshot["verdict"]["confidence"] == "HIGH"
        assert snapshot["verdict"]["holder_pids"] == [process.pid]
        shown = freezeframe("show", "x.ffz", "verdict", "locks", "native", cwd=tmp_path).stdout
        text = " ".join(shown.split())
        assert "3 threads of locks" in text
        assert "wait for each other, and nobody else can let them go" in text
        assert text.count("waits for the mutex") >= 3
        assert text.count("pthread_mutex 0x") == 3
        assert text.count("ring locks-0+0x") == 3
        # The index of symbols was kept for the next capture.
        assert list((agent.state_dir / "symbols").iterdir())
