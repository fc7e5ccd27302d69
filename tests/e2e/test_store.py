"""What the daemon keeps, through the client: pins, damaged files, a full disk."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import freezeframe, snap
from tests.support.daemon import running_daemon

pytestmark = [pytest.mark.needs("root"), pytest.mark.timeout(300)]


def kept(address: str, folder: Path) -> list[dict[str, Any]]:
    done = freezeframe("--output", "json", "list", address, cwd=folder)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["snapshots"]
    return found


def store(address: str, folder: Path) -> dict[str, Any]:
    done = freezeframe("--output", "json", "doctor", address, cwd=folder)
    (found,) = [each for each in json.loads(done.stdout)["capabilities"] if each["name"] == "store"]
    return dict(found)


def test_the_oldest_unpinned_go_first(tmp_path: Path) -> None:
    config = tmp_path / "agentd.toml"
    config.write_text("[store]\nmax_snapshots = 2\n")
    with running_daemon("--config", str(config)) as agent:
        first = snap(agent.address, "--window", "0", cwd=tmp_path)["meta"]["snapshot_id"]
        pinned = freezeframe("pin", first, agent.address, cwd=tmp_path)
        assert (pinned.returncode, pinned.stderr) == (0, f"Pinned {first}.\n")
        others = [snap(agent.address, "--window", "0", cwd=tmp_path)["meta"]["snapshot_id"] for _ in range(3)]
        assert [(each["snapshot_id"], each["pinned"]) for each in kept(agent.address, tmp_path)] == [
            (others[2], False), (first, True),
        ]  # fmt: skip
        refused = freezeframe("rm", first, agent.address, cwd=tmp_path)
        assert refused.returncode == 3
        assert f"freezeframe pin --unpin {first}" in refused.stderr
        assert freezeframe("pin", "--unpin", first, agent.address, cwd=tmp_path).returncode == 0
        assert freezeframe("rm", first, agent.address, cwd=tmp_path).returncode == 0
        assert [each["snapshot_id"] for each in kept(agent.address, tmp_path)] == [others[2]]


def test_a_damaged_file_shows_in_doctor_and_list(tmp_path: Path) -> None:
    with running_daemon() as agent:
        ids = [snap(agent.address, "--window", "0", cwd=tmp_path)["meta"]["snapshot_id"] for _ in range(2)]
        assert store(agent.address, tmp_path)["state"] == "PRESENT"
        changed, cut = (agent.state_dir / "snapshots" / f"{each}.ffz" for each in ids)
        data = bytearray(changed.read_bytes())
        data[-1] ^= 1
        changed.write_bytes(data)
        cut.write_bytes(cut.read_bytes()[:-1])
        found = store(agent.address, tmp_path)
        assert found["state"] == "LIMITED"
        assert found["detail"].startswith("damaged: ")
        damage = {each["snapshot_id"]: each["damage"] for each in kept(agent.address, tmp_path)}
        assert damage[ids[0]].startswith("bytes were changed in ")
        assert damage[ids[1]].startswith("it has ")
        # What is whole of it can still be had.
        assert freezeframe("get", ids[0], agent.address, "-o", "saved.ffz", cwd=tmp_path).returncode == 5


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(mount)], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk_costs_no_capture(tmp_path: Path, small_disk: Path) -> None:
    with running_daemon("--state-dir", str(small_disk / "state")) as agent:
        fill = small_disk / "fill"
        disk = os.statvfs(small_disk)
        fill.write_bytes(b"x" * (disk.f_bavail * disk.f_frsize))
        done = freezeframe("snap", "--window", "0", agent.address, cwd=tmp_path)
        assert done.returncode in (0, 4)
        assert "No space left on device" in done.stderr
        (saved,) = tmp_path.glob("*.ffz")
        assert freezeframe("show", str(saved), cwd=tmp_path).returncode == 0
        assert kept(agent.address, tmp_path) == []
        assert store(agent.address, tmp_path)["hint"] == "free space on the disk of the state directory"
        assert list((small_disk / "state/snapshots").iterdir()) == []
        fill.unlink()
        snapshot_id = snap(agent.address, "--window", "0", cwd=tmp_path)["meta"]["snapshot_id"]
        assert [each["snapshot_id"] for each in kept(agent.address, tmp_path)] == [snapshot_id]
