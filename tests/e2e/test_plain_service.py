"""A service that nobody knows by name: the generic hops."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.children import PROGRAMS
from tests.support.command import snap
from tests.support.daemon import running_daemon

pytestmark = [
    pytest.mark.needs("root", "e2e"),
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        bool(os.environ.get("FREEZEFRAME_SHARED_MACHINE")), reason="beside a known engine a plain service is none"
    ),
]

CLIENT = """
import socket, sys
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(7)]
for one in held:
    one.sendall(b"POST /hang HTTP/1.1\\r\\nHost: a\\r\\nContent-Length: 2\\r\\n\\r\\nhi")
print("sent", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def service() -> Iterator[tuple[subprocess.Popen[str], int]]:
    command = [sys.executable, "-m", "uvicorn", "http_app:app", "--app-dir", str(PROGRAMS), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"running on http://127.0.0.1:(\d+)", line):
            yield process, int(found[1])
            break
    process.kill()
    process.communicate()


def test_requests_that_a_plain_uvicorn_service_keeps(
    service: tuple[subprocess.Popen[str], int], tmp_path: Path
) -> None:
    process, port = service
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert client.stdout is not None
    assert client.stdout.readline() == "sent\n"
    with running_daemon() as agent:
        while True:
            snapshot = snap(agent.address, cwd=tmp_path)
            verdict = snapshot["verdict"]
            # An engine that nobody knows proves its rest by time alone.
            if verdict["code"] != "UNDETERMINED":
                break
    client.communicate()
    assert (verdict["code"], verdict["holder_pids"]) == ("ENGINE_HOLDS", [process.pid]), verdict["summary"]
    roles = {each["pid"]: each["role"] for each in snapshot["processes"]}
    assert (roles[process.pid], roles[client.pid]) == ("ENGINE_HTTP", "CLIENT")
    assert verdict["attribution"][0]["pid"] == client.pid
    assert verdict["attribution"][0]["requests_in_flight"] == 7
