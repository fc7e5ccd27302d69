"""An agent in a pid namespace of its own: what eBPF would say is of other pids, so nothing of it is used."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from freezeframe.agentd.host import namespaces

pytestmark = pytest.mark.needs("root", "kernel")
# Start a daemon there, capture this very process, print the outcomes.
CODE = """
import json, os, sys
from pathlib import Path
from tests.support.command import snap
from tests.support.daemon import running_daemon
with running_daemon() as agent:
    outcomes = snap(agent.address, "--window", "0", "-p", str(os.getpid()), cwd=Path(sys.argv[1]))["outcomes"]
print(json.dumps({each["collector"]: (each["status"], each["detail"], each["hint"]) for each in outcomes}))
"""


def test_requests_are_unavailable_and_it_says_why(tmp_path: Path) -> None:
    assert namespaces.sees_host_pids()
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", sys.executable, "-c", CODE]
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    why = ["UNAVAILABLE", namespaces.OTHER_PIDS, namespaces.HOST_PIDS_HINT]
    assert outcomes["trace_requests"] == why
    assert outcomes["read_history"] == why
    assert outcomes["snapshot_processes"][0] == "OK"
