"""`snap --start`: a real agent, copied through a real sshd to where none is installed, and nothing left of it."""

from __future__ import annotations

import json
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

from tests.support.sshd import UID, USER, Sshd, running_sshd

pytestmark = [pytest.mark.needs("sshd"), pytest.mark.timeout(600)]

CLIENT = [sys.executable, "-m", "freezeframe.client"]
RELEASE = f"python{sys.version_info[0]}.{sys.version_info[1]}"
# Where no agent has its sockets.
NOWHERE = "/run/freezeframe-nowhere"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, which others may pass through, with the programs of the host and a directory for its files."""
    path = Path(tempfile.mkdtemp(prefix="ff-", dir="/tmp"))
    path.chmod(0o711)
    for name in ("programs", "far"):
        (path / name).mkdir()
    (path / "programs" / "sh").symlink_to("/bin/sh")
    yield path
    shutil.rmtree(path)


def host(folder: Path, *, path: str = "", files: Path | None = None) -> str:
    """What sshd gives those who log in: programs of ours alone, unless told otherwise."""
    return f"SetEnv PATH={path or folder / 'programs'} TMPDIR={files or folder / 'far'}"


def with_python(folder: Path) -> None:
    (folder / "programs" / RELEASE).symlink_to(os.path.realpath(sys.executable))


def start(sshd: Sshd, cwd: Path, *arguments: str, user: str = "root") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*CLIENT, "--output", "json", "snap", "--start", f"ssh://{user}@box{NOWHERE}", *arguments], cwd=cwd,
        env=sshd.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240.0
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def agents_of(folder: Path) -> list[int]:
    found = []
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        try:
            command_line = Path(f"/proc/{entry}/cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(folder / "far") in command_line and b"freezeframe.agentd" in command_line:
            found.append(int(entry))
    return found


def test_where_no_agent_is_installed_one_is_copied_used_and_removed(folder: Path, tmp_path: Path) -> None:
    with_python(folder)
    with running_sshd(folder, host(folder)) as sshd:
        done = start(sshd, tmp_path, "--window", "0", "--only", "snapshot_host", "--deadline", "60")
        assert done.returncode in (0, 4), done.stderr
        snapshot = json.loads(done.stdout)
        assert snapshot["meta"]["embedded"]
        assert {each["collector"]: each["status"] for each in snapshot["outcomes"]}["snapshot_host"] == "OK"
        said = done.stderr.splitlines()[0]
        assert said.startswith(f"No agent runs on ssh://root@box{NOWHERE}: copying one there for this capture, ")
        assert [f"{tmp_path / done.stderr.splitlines()[-1]}"] == [str(path) for path in tmp_path.glob("*.ffz")]
        until(lambda: not agents_of(folder) and os.listdir(folder / "far") == [] and sshd.clients() == [])


def test_it_ends_with_a_client_that_is_killed(folder: Path, tmp_path: Path) -> None:
    with_python(folder)
    with running_sshd(folder, host(folder)) as sshd:
        with subprocess.Popen(
            [*CLIENT, "snap", "--start", f"ssh://root@box{NOWHERE}", "--window", "25", "--deadline", "60"],
            cwd=tmp_path, env=sshd.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as client:  # fmt: skip
            until(lambda: [*folder.glob("far/*/run/capture.sock")] != [])
            assert len(agents_of(folder)) >= 4
            client.kill()
        until(lambda: not agents_of(folder) and os.listdir(folder / "far") == [])
        # The ssh that forwards learns nothing of it.
        for pid in sshd.client_pids():
            os.kill(pid, signal.SIGTERM)


def refused(done: subprocess.CompletedProcess[str], user: str = "root") -> str:
    assert done.returncode == 3, done.stderr
    line = next(line for line in done.stderr.splitlines() if line.startswith("Error: "))
    begin = f"Error: starting an agent on ssh://{user}@box{NOWHERE}: "
    assert line.startswith(begin)
    assert "Hint: install the package there, or run it there: freezeframe snap --embedded" in done.stderr
    return line.removeprefix(begin)


def test_without_a_python_of_this_release(folder: Path, tmp_path: Path) -> None:
    with running_sshd(folder, host(folder)) as sshd:
        assert refused(start(sshd, tmp_path)) == f"there is no {RELEASE} there"
        # One of another release.
        (folder / "programs" / "python3").write_text("#!/bin/sh\nexit 1\n")
        (folder / "programs" / "python3").chmod(0o755)
        assert refused(start(sshd, tmp_path)) == f"there is no {RELEASE} there"


@pytest.mark.skipif(shutil.which(RELEASE, path="/usr/bin") is None, reason="no Python that others than root may run")
def test_as_another_user_than_root(folder: Path, tmp_path: Path) -> None:
    with running_sshd(folder, host(folder, path="/usr/bin:/bin")) as sshd:
        said = refused(start(sshd, tmp_path, user=USER), USER)
    assert said == f"it has to be root there, and ssh was let in as uid {UID}"


def test_where_there_is_no_room_for_it(folder: Path, tmp_path: Path) -> None:
    with_python(folder)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder / "far")], check=True)
    try:
        with running_sshd(folder, host(folder)) as sshd:
            assert refused(start(sshd, tmp_path)) == "copying it: No space left on device"
            until(lambda: os.listdir(folder / "far") == [])
    finally:
        subprocess.run(["umount", str(folder / "far")], check=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--start is for another host: name one"),
        (("root@gpu-[01-02]",), "--start is for one host at a time"),
        (("tls://box",), "--start is for a host behind ssh, and tls://box is given"),
    ],
)
def test_it_is_for_hosts_behind_ssh(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = subprocess.run(
        [*CLIENT, "snap", "--start", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, said in done.stderr) == (2, True)
