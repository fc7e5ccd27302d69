"""The client through kubectl. No cluster runs here: a stand-in of the same command line really forwards a port.

What the real kubectl says without a cluster is shown too, where there is one.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from freezeframe.agentd.config import Config, Remote
from tests.support.agent import running_agent
from tests.support.certificates import authority, remote
from tests.support.children import PROGRAMS

PARTIAL = 4


async def client(*arguments: str, folder: Path, path: str) -> tuple[int, str, str]:
    (folder / "tmp").mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "freezeframe.client", *arguments, cwd=folder,
        env={**os.environ, "PATH": path, "TMPDIR": str(folder / "tmp"), "HOME": str(folder), "KUBECONFIG": "/dev/null"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    stdout, stderr = await process.communicate()
    assert process.returncode is not None
    return process.returncode, stdout.decode(), stderr.decode()


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH on which kubectl is the stand-in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    stand_in = folder / "kubectl"
    stand_in.write_text(f'#!/bin/sh\nexec {sys.executable} {PROGRAMS}/kubectl "$@"\n')
    stand_in.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def processes(word: str) -> list[str]:
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if word in line:
            found.append(line)
    return found


async def test_a_snapshot_comes_through_kubectl_and_nothing_stays(tmp_path: Path, path: str) -> None:
    async with running_agent(
        tmp_path / "a", config=Config(remote=Remote(listen="127.0.0.1:0")), insecure=True
    ) as agent:
        assert agent.listener is not None
        port = agent.listener.port
        code, stdout, stderr = await client("snap", f"kube://monitoring/agent:{port}", folder=tmp_path, path=path)
        assert code in (0, PARTIAL), stderr
        assert stdout
        assert len(list(tmp_path.glob("*.ffz"))) == 1
        assert processes(f"pod/agent :{port}") == []
        assert os.listdir(tmp_path / "tmp") == []


async def test_kubectls_own_words_are_shown(tmp_path: Path, path: str) -> None:
    code, _, stderr = await client("snap", "kube://monitoring/other", folder=tmp_path, path=path)
    assert (code, stderr) == (3, (
        "Error: connecting to kube://monitoring/other: kubectl ended with 1: "
        'Error from server (NotFound): pods "other" not found\n'
    ))  # fmt: skip
    code, _, stderr = await client("list", "kube://forbidden/agent", folder=tmp_path, path=path)
    assert code == 3
    assert 'Error from server (Forbidden): pods "agent" is forbidden: User "jane" cannot get' in stderr


async def test_a_pod_in_which_nothing_listens(tmp_path: Path, path: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    code, _, stderr = await client("snap", f"kube://monitoring/agent:{port}", folder=tmp_path, path=path)
    assert code == 3
    assert stderr == (
        f"Error: connecting to kube://monitoring/agent:{port}: nothing answers on port {port} of the pod: "
        f"error forwarding port {port} to pod agent: Connection refused\n"
        'Hint: the agent there listens with --insecure and, under [remote], listen = "127.0.0.1:7443"; '
        f"one that speaks TLS: kubectl port-forward -n monitoring agent {port}, then tls://localhost:{port}\n"
    )


async def test_a_pod_that_speaks_tls_is_told_how_to_reach(tmp_path: Path, path: str) -> None:
    files = authority(tmp_path / "ca").agent()
    async with running_agent(tmp_path / "a", config=Config(remote=remote(files))) as agent:
        assert agent.listener is not None
        port = agent.listener.port
        code, _, stderr = await client("snap", f"kube://monitoring/agent:{port}", folder=tmp_path, path=path)
    assert code == 3
    assert f"nothing answers on port {port} of the pod\n" in stderr
    assert f"kubectl port-forward -n monitoring agent {port}, then tls://localhost:{port}\n" in stderr


async def test_without_kubectl(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code, _, stderr = await client("snap", "kube://monitoring/agent", folder=tmp_path, path=str(tmp_path / "empty"))
    assert code == 3
    assert stderr.startswith("Error: connecting to kube://monitoring/agent: there is no kubectl here\nHint: install it")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
async def test_the_real_kubectl_without_a_cluster(tmp_path: Path) -> None:
    code, _, stderr = await client("snap", "kube://monitoring/agent", folder=tmp_path, path=os.environ["PATH"])
    assert code == 3
    assert "kubectl ended with 1" in stderr
    assert "connection to the server localhost:8080 was refused" in stderr
