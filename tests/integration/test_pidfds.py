from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from freezeframe.agentd.jobs import Target
from freezeframe.agentd.pidfds import Held

PROGRAM = Path(__file__).parents[1] / "programs" / "reuse_pid.py"


def test_a_process_that_ends_is_told_a_zombie_too() -> None:
    with (
        subprocess.Popen(["sleep", "60"]) as ends,
        subprocess.Popen(["sleep", "60"]) as stays,
        subprocess.Popen(["true"]) as gone,
    ):
        gone.wait()
        before = len(os.listdir("/proc/self/fd"))
        held = Held(Target(pid=process.pid, start_ticks=1) for process in (ends, stays, gone))
        try:
            assert held.exited() == {gone.pid}
            ends.kill()
            # Ended, not reaped.
            os.waitid(os.P_PID, ends.pid, os.WEXITED | os.WNOWAIT)
            assert held.exited() == {gone.pid, ends.pid}
        finally:
            held.close()
            held.close()
            stays.kill()
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.needs("root")
def test_a_pid_that_is_used_again_is_not_the_same_process() -> None:
    done = subprocess.run(
        ["unshare", "-pf", "--mount-proc", sys.executable, str(PROGRAM), "200"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    counts = json.loads(done.stdout)
    assert (counts["rounds"], counts["told_apart"]) == (200, 200)
