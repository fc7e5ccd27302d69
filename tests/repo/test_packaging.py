"""What is packaged is what the agent needs: its unit, its accounts, its settings."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from freezeframe.agentd import capabilities, config

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
UNIT = PACKAGING / "systemd/freezeframe-agentd.service"
CHART = PACKAGING / "kubernetes/freezeframe"
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


def chart(*options: str) -> list[dict[str, Any]]:
    """What the chart renders to, each checked against the schema of its kind where the schemas are at hand."""
    yaml = pytest.importorskip("yaml")
    done = subprocess.run(
        ["helm", "template", "ff", str(CHART), "--kube-version", "1.31.0", *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    rendered = [each for each in yaml.safe_load_all(done.stdout) if each]
    if importlib.util.find_spec("kubernetes_validate") is not None:
        for each in rendered:
            importlib.import_module("kubernetes_validate").validate(each, "1.31", strict=True)
    return rendered


@pytest.mark.needs("helm")
@pytest.mark.parametrize("kernel_stacks", [False, True])
def test_the_chart_grants_what_the_unit_does(kernel_stacks: bool) -> None:
    config_text = 'log_level = "debug"\n'
    rendered = chart("--set", f"kernelStacks={str(kernel_stacks).lower()}", "--set-string", f"config={config_text}")
    assert sorted(each["kind"] for each in rendered) == ["ConfigMap", "DaemonSet", "NetworkPolicy"]
    by_kind = {each["kind"]: each for each in rendered}
    assert config.parse(by_kind["ConfigMap"]["data"]["agentd.toml"], "chart").log_level == "debug"
    pod = by_kind["DaemonSet"]["spec"]["template"]["spec"]
    assert (pod["hostPID"], pod["automountServiceAccountToken"]) == (True, False)
    security = pod["containers"][0]["securityContext"]
    assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
    wanted = settings(UNIT)["AmbientCapabilities"] + (settings(DROP_IN)["AmbientCapabilities"] if kernel_stacks else [])
    assert security["capabilities"] == {"drop": ["ALL"], "add": [name.removeprefix("CAP_") for name in wanted]}


@pytest.mark.needs("helm")
def test_the_chart_has_no_fault() -> None:
    done = subprocess.run(["helm", "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    bad = subprocess.run(
        ["helm", "lint", str(CHART), "--set", "kernelStack=true"], capture_output=True, text=True, check=False
    )
    assert bad.returncode == 1, "a misspelt value passes"


def test_every_place_has_the_version_of_the_project() -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[1]
    assert f"\nversion: {version}\nappVersion: {version}\n" in (CHART / "Chart.yaml").read_text()
    assert f"freezeframe_{version}-1_amd64.deb" in (PACKAGING / "ansible/freezeframe.yml").read_text()
    assert f"freezeframe_{version}-1_amd64.deb" in (ROOT / "docs/pages/install.md").read_text()


def test_everything_that_the_agent_needs_is_pinned() -> None:
    """`make lock` writes it anew."""
    text = (PACKAGING / "requirements.lock").read_text()
    pinned = {
        name.replace("_", "-"): version for name, version in re.findall(r"^([\w.-]+)==([^ ;]+)", text, re.MULTILINE)
    }
    wanted = [Requirement(each) for each in importlib.metadata.requires("freezeframe") or ()]
    wanted = [
        each
        for each in wanted
        if each.marker is None or "extra" not in str(each.marker) or "'agent'" in str(each.marker).replace('"', "'")
    ]
    assert len(wanted) > 10
    for each in wanted:
        assert each.specifier.contains(pinned[each.name.replace("_", "-")]), each
    assert all("--hash=sha256:" in block for block in re.split(r"\n(?=[\w.-]+==)", text.strip()))


@pytest.mark.parametrize(
    "script",
    sorted(PACKAGING.rglob("*.sh")) + [PACKAGING / "deb" / each for each in ("preinst", "postinst", "prerm", "postrm")],
)
def test_shell_scripts_parse(script: Path) -> None:
    done = subprocess.run(["sh", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
