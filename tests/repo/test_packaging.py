"""What is packaged is what the agent needs: its unit, its accounts, its settings."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from freezeframe.agentd import capabilities, config

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
UNIT = PACKAGING / "systemd/freezeframe-agentd.service"
DROP_IN = PACKAGING / "systemd/kernel-stacks.conf"
# Of the exposure that systemd-analyze tells, 0 to 10, times ten.
MOST_EXPOSURE = 40


def settings(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", path.read_text(), re.MULTILINE):
        found.setdefault(name, []).extend(value.split())
    return found


def test_the_unit_grants_what_doctor_asks_for() -> None:
    wanted = [name for _, name, _ in capabilities._BITS]
    unit, drop_in = settings(UNIT), settings(DROP_IN)
    for setting in ("AmbientCapabilities", "CapabilityBoundingSet"):
        assert unit[setting] + drop_in[setting] == wanted
    assert drop_in["AmbientCapabilities"] == [capabilities._OPTIONAL]


def test_the_unit_uses_the_directories_of_the_configuration() -> None:
    unit = settings(UNIT)
    assert f"/run/{unit['RuntimeDirectory'][0]}" == config.Config().runtime_dir
    assert f"/var/lib/{unit['StateDirectory'][0]}" == config.Config().state_dir
    assert (unit["RuntimeDirectoryMode"], unit["StateDirectoryMode"]) == (["0711"], ["0700"])


def test_the_accounts_are_those_of_unit_and_settings() -> None:
    lines = [line.split() for line in (PACKAGING / "systemd/freezeframe.sysusers.conf").read_text().splitlines()]
    groups = [line[1] for line in lines if line and line[0] == "g"]
    given = config.load(str(PACKAGING / "config/agentd.toml")).groups
    assert groups == [given.view, given.capture, given.admin]
    assert settings(UNIT)["SupplementaryGroups"] == groups
    # Without CAP_CHOWN a socket can be given to one's own groups alone.
    assert [line[1:] for line in lines if line and line[0] == "m"] == [["freezeframe", group] for group in groups]


@pytest.mark.needs("systemd")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    unit.write_text(re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", UNIT.read_text(), flags=re.MULTILINE))
    (tmp_path / f"{UNIT.name}.d").mkdir()
    (tmp_path / f"{UNIT.name}.d" / DROP_IN.name).write_text(DROP_IN.read_text())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.needs("systemd")
def test_the_unit_exposes_little() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={MOST_EXPOSURE}", str(UNIT)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout.splitlines()[-1] + done.stderr
