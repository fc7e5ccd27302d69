"""The client against a real sshd: what it forwards, what it says when it is not let in, and what it leaves behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from freezeframe.v1 import service_pb2
from tests.support.canned_agent import Script, canned_agent, step
from tests.support.network import network
from tests.support.sshd import USER, Sshd, running_sshd
from tests.support.story import story_bytes

pytestmark = pytest.mark.needs("sshd")

TIMEOUT_S = 60.0
CLIENT = [sys.executable, "-m", "freezeframe.client"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, which others may pass through."""
    path = Path(tempfile.mkdtemp(prefix="ff-ssh-", dir="/tmp"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def sshd(folder: Path) -> Iterator[Sshd]:
    with running_sshd(folder) as running:
        yield running


@pytest.fixture
def script() -> Script:
    return Script(data=story_bytes())


@pytest.fixture
def agent(script: Script) -> Iterator[str]:
    """The directory of an agent's sockets."""
    with canned_agent(script) as path:
        path.parent.chmod(0o711)
        yield str(path.parent)


def client(sshd: Sshd, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLIENT, *arguments], cwd=cwd, env=sshd.environment(), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def nothing_is_left(sshd: Sshd) -> bool:
    return sshd.clients() == [] and os.listdir(sshd.private) == []


def test_a_snapshot_comes_over_ssh_and_nothing_stays(sshd: Sshd, agent: str, script: Script, tmp_path: Path) -> None:
    done = client(sshd, "snap", f"ssh://root@127.0.0.1:{sshd.port}{agent}", cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    assert done.stdout.startswith("ROUTER_DUAL_LEG")
    (saved,) = tmp_path.glob("*.ffz")
    assert saved.read_bytes() == script.data
    until(lambda: nothing_is_left(sshd))


def test_a_host_of_the_configuration_through_a_jump_host_of_sshs(sshd: Sshd, agent: str, tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f'[hosts.gpu-07]\naddress = "ssh://root@behind{agent}"\n')
    # Of the sockets that may list, the agent has that of capture alone.
    done = client(sshd, "--config", str(config), "list", "gpu-07", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    accepted = (sshd.folder / "sshd.log").read_text().count("Accepted publickey for root")
    assert accepted == 2
    until(lambda: nothing_is_left(sshd))


def test_from_one_network_namespace_into_another(folder: Path, agent: str, script: Script, tmp_path: Path) -> None:
    with network("laptop", "gpu") as net, running_sshd(folder, place=net.places["gpu"]) as sshd:

        def snap(address: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                net.places["laptop"].command(*CLIENT, "snap", f"ssh://root@{address}{agent}"), cwd=tmp_path,
                env=sshd.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                timeout=TIMEOUT_S,
            )  # fmt: skip

        done = snap("box")
        assert done.returncode == 4, done.stderr
        (saved,) = tmp_path.glob("*.ffz")
        assert saved.read_bytes() == script.data
        nowhere = f"{net.switch.address.removesuffix('.1')}.250"
        done = snap(nowhere)
        assert done.returncode == 3
        assert f"ssh ended with 255: ssh: connect to host {nowhere} port {sshd.port}: No route to host\n" in done.stderr
        until(lambda: nothing_is_left(sshd))


def test_user_at_host_finds_the_default_directory_empty(sshd: Sshd, tmp_path: Path) -> None:
    if os.path.exists("/run/freezeframe"):
        pytest.skip("an agent has its sockets in /run/freezeframe here")
    done = client(sshd, "snap", "root@box", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith(
        "Error: connecting to root@box: ssh was let in, but no agent has its sockets in /run/freezeframe there\nHint: "
    )
    assert "sudo freezeframe-agentd" in done.stderr


def test_a_dead_agents_socket_is_told_from_none(sshd: Sshd, agent: str, tmp_path: Path) -> None:
    left = tmp_path / "run"
    left.mkdir()
    shutil.copyfile("/dev/null", left / "capture.sock")
    done = client(sshd, "list", f"ssh://root@box{left}", cwd=tmp_path)
    assert done.returncode == 3
    assert f"no agent has its sockets in {left} there" in done.stderr
    done = client(sshd, "snap", f"ssh://root@box{left}", cwd=tmp_path)
    assert f"{left}/capture.sock there cannot be opened: no agent listens on it any more, or" in done.stderr


@pytest.mark.parametrize(
    ("gid", "sentence", "hint"),
    [
        (0, "it belongs to root alone", "ssh://root@HOST"),
        (27, "it belongs to the group sudo", "sudo usermod -aG sudo USER"),
    ],
)
def test_a_user_who_may_not_open_the_socket_learns_who_may(
    sshd: Sshd, agent: str, tmp_path: Path, gid: int, sentence: str, hint: str
) -> None:
    os.chown(f"{agent}/capture.sock", 0, gid)
    os.chmod(f"{agent}/capture.sock", 0o660)
    done = client(sshd, "snap", f"ssh://{USER}@box{agent}", cwd=tmp_path)
    assert done.returncode == 3
    assert f"its user may not open {agent}/capture.sock there: {sentence}\n" in done.stderr
    assert hint in done.stderr


def test_sshs_own_words_are_shown(sshd: Sshd, agent: str, tmp_path: Path) -> None:
    done = client(sshd, "snap", "ssh://root@127.0.0.1:1", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr == (
        "Error: connecting to ssh://root@127.0.0.1:1: ssh ended with 255: "
        "ssh: connect to host 127.0.0.1 port 1: Connection refused\n"
    )
    done = client(sshd, "snap", "root@no-such-host.invalid", cwd=tmp_path)
    assert "ssh: Could not resolve hostname no-such-host.invalid: " in done.stderr
    (sshd.folder / "known_hosts").write_text("")
    done = client(sshd, "snap", f"ssh://root@127.0.0.1:{sshd.port}{agent}", cwd=tmp_path)
    assert done.returncode == 3
    # Several lines of ssh stay lines.
    assert "ssh ended with 255, and said:\n  No ED25519 host key is known for" in done.stderr
    assert "\n  Host key verification failed.\n" in done.stderr


def test_a_key_that_is_not_let_in(sshd: Sshd, agent: str, tmp_path: Path) -> None:
    (sshd.folder / "user_key.pub").write_text("")
    done = client(sshd, "snap", "root@box", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr == (
        "Error: connecting to root@box: ssh ended with 255: "
        "root@127.0.0.1: Permission denied (publickey,keyboard-interactive).\n"
    )
    until(lambda: nothing_is_left(sshd))


@pytest.mark.parametrize("line", ["AllowStreamLocalForwarding no", "DisableForwarding yes"])
def test_an_sshd_that_forwards_no_sockets(folder: Path, agent: str, tmp_path: Path, line: str) -> None:
    with running_sshd(folder, line) as sshd:
        done = client(sshd, "snap", f"ssh://root@box{agent}", cwd=tmp_path)
    assert done.returncode == 3
    assert "or that sshd forwards no unix sockets\n" in done.stderr
    assert "in sshd_config: AllowStreamLocalForwarding yes\n" in done.stderr


def test_without_ssh(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = subprocess.run(
        [*CLIENT, "list", "root@box"], cwd=tmp_path, env={**os.environ, "PATH": str(tmp_path / "empty")},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 3
    assert done.stderr.startswith("Error: connecting to root@box: there is no ssh here\nHint: ")


@pytest.mark.parametrize(
    "host", ["root@-oProxyCommand=touch,x", "ssh://-oProxyCommand=touch x", "ssh://-lroot@box", "-v@box", "a b@box",
             "ssh://box:0", "ssh://box:70000", "ssh://box/run/../..;x", "root@box:22", "ssh://box/a b", "ssh://"]
)  # fmt: skip
def test_what_is_no_host_never_reaches_ssh(folder: Path, tmp_path: Path, host: str) -> None:
    stand_in = folder / "ssh"
    stand_in.write_text(f"#!/bin/sh\ntouch {folder}/ran\n")
    stand_in.chmod(0o755)
    done = subprocess.run(
        [*CLIENT, "snap", "--", host], cwd=tmp_path, env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"Error: {host} is no host for ssh\n" in done.stderr
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_ssh_too(sshd: Sshd, agent: str, script: Script, tmp_path: Path, number: int, code: int) -> None:
    def wait(_request: object, context: object) -> Iterator[service_pb2.CaptureEvent]:
        context.add_callback(script.release.set)  # type: ignore[attr-defined]
        yield service_pb2.CaptureEvent(progress=step("snapshot_sockets", "OK"))
        script.release.wait(TIMEOUT_S)

    script.capture = wait
    with subprocess.Popen(
        [*CLIENT, "snap", f"ssh://root@box{agent}"], cwd=tmp_path, env=sshd.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.readline() == b"snapshot_sockets  OK  41 ms\n"
        assert len(sshd.clients()) == 1
        process.send_signal(number)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == code
    until(lambda: nothing_is_left(sshd))
    assert script.release.wait(TIMEOUT_S)


def test_a_connection_that_breaks_in_the_middle(sshd: Sshd, agent: str, script: Script, tmp_path: Path) -> None:
    def wait(_request: object, _context: object) -> Iterator[service_pb2.CaptureEvent]:
        yield service_pb2.CaptureEvent(progress=step("snapshot_sockets", "OK"))
        script.release.wait(TIMEOUT_S)

    script.capture = wait
    with subprocess.Popen(
        [*CLIENT, "snap", f"ssh://root@box{agent}"], cwd=tmp_path, env=sshd.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert process.stderr.readline() == "snapshot_sockets  OK  41 ms\n"
        for entry in filter(str.isdecimal, os.listdir("/proc")):
            status = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            if int(status[1]) == sshd.process.pid:
                os.kill(int(entry), signal.SIGTERM)
        _, stderr = process.communicate(timeout=TIMEOUT_S)
        script.release.set()
    assert process.returncode == 3
    assert f"Error: connecting to ssh://root@box{agent}: ssh ended with 255" in stderr
    assert "closed by remote host" in stderr
