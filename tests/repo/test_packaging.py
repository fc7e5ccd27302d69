"""What is packaged is what the agent needs: its unit, its accounts, its settings."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from freezeframe.agentd import capabilities, config
from tests.support.needs import HELM

ROOT = Path(__file__).resolve().parents[2]
PACKAGING = ROOT / "packaging"
UNIT = PACKAGING / "systemd/freezeframe-agentd.service"
CHART = PACKAGING / "kubernetes/freezeframe"
HELPER = PACKAGING / "systemd/freezeframe-kernel-stacks.service"
DROP_IN = PACKAGING / "systemd/kernel-stacks.conf"
KUBERNETES = "1.31"
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


def test_the_helper_is_where_the_configuration_looks_for_it() -> None:
    unit = settings(HELPER)
    assert unit["ExecStart"][-1] == config.Config().kernel_stacks == f"/run/{unit['RuntimeDirectory'][0]}/socket"
    assert (unit["RuntimeDirectoryMode"], unit["User"]) == (["0700"], settings(UNIT)["User"])
    assert unit["CapabilityBoundingSet"] == unit["AmbientCapabilities"] == ["CAP_SYS_ADMIN", "CAP_DAC_READ_SEARCH"]


def test_scripts_of_the_rpm_parse() -> None:
    spec = (PACKAGING / "rpm/freezeframe.spec").read_text()
    for name in ("pre", "post", "preun", "postun"):
        script = spec.partition(f"\n%{name}\n")[2].partition("\n%")[0]
        done = subprocess.run(["sh", "-n"], input=script, capture_output=True, text=True, check=False)
        assert (bool(script), done.returncode, done.stderr) == (True, 0, "")


@pytest.mark.needs("systemd")
@pytest.mark.parametrize("given", [UNIT, HELPER])
def test_systemd_takes_the_units(tmp_path: Path, given: Path) -> None:
    unit = tmp_path / given.name
    unit.write_text(re.sub(r"^ExecStart=.*$", "ExecStart=/bin/true", given.read_text(), flags=re.MULTILINE))
    (tmp_path / f"{UNIT.name}.d").mkdir()
    (tmp_path / f"{UNIT.name}.d" / DROP_IN.name).write_text(DROP_IN.read_text())
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.needs("systemd")
@pytest.mark.parametrize(("unit", "most"), [(UNIT, MOST_EXPOSURE), (HELPER, 15)])
def test_the_units_expose_little(unit: Path, most: int) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={most}", str(unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout.splitlines()[-1] + done.stderr


def validate(resource: dict[str, Any]) -> None:
    importlib.import_module("kubernetes_validate").validate(resource, KUBERNETES, strict=True)


def chart(*options: str) -> dict[str, Any]:
    """What the chart renders to, by kind, each checked against the schema of its kind where Kubernetes has it."""
    done = subprocess.run(
        [HELM, "template", "ff", str(CHART), "--kube-version", KUBERNETES, *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    rendered = [each for each in yaml.safe_load_all(done.stdout) if each]
    for each in rendered:
        if not each["apiVersion"].startswith("monitoring.coreos.com/"):
            validate(each)
    return {each["kind"]: each for each in rendered}


def pod(rendered: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = rendered["DaemonSet"]["spec"]["template"]
    return found


def short(capabilities: list[str]) -> list[str]:
    return [name.removeprefix("CAP_") for name in capabilities]


@pytest.mark.needs("helm", "kubernetes")
@pytest.mark.parametrize("pod_networks", [False, True])
def test_the_chart_grants_what_the_unit_does(pod_networks: bool) -> None:
    config_text = 'log_level = "debug"\n'
    rendered = chart("--set", f"podNetworks={str(pod_networks).lower()}", "--set-string", f"config={config_text}")
    assert sorted(rendered) == ["ConfigMap", "DaemonSet", "NetworkPolicy"]
    assert rendered["NetworkPolicy"]["spec"]["ingress"] == []
    assert config.parse(rendered["ConfigMap"]["data"]["agentd.toml"], "chart") == config.Config(log_level="debug")
    spec = pod(rendered)["spec"]
    assert (spec["hostPID"], spec["automountServiceAccountToken"]) == (True, False)
    (agent,) = spec["containers"]
    security = agent["securityContext"]
    assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
    wanted = settings(UNIT)["AmbientCapabilities"] + (settings(DROP_IN)["AmbientCapabilities"] if pod_networks else [])
    assert security["capabilities"] == {"drop": ["ALL"], "add": short(wanted)}


@pytest.mark.needs("helm", "kubernetes")
def test_kernel_stacks_give_the_agent_of_the_chart_no_capability() -> None:
    (alone,) = pod(chart())["spec"]["containers"]
    spec = pod(chart("--set", "kernelStacks=true"))["spec"]
    agent, helper = spec["containers"]
    assert agent["securityContext"] == alone["securityContext"]
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    unit = settings(HELPER)
    assert (helper["image"], helper["command"]) == (agent["image"], unit["ExecStart"])
    assert helper["securityContext"] == {
        "runAsUser": 0, "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": short(unit["AmbientCapabilities"])},
    }  # fmt: skip
    # The directory of the socket is all that it has; the agent finds it where it looks by itself.
    directory = {"name": "kernel-stacks", "mountPath": str(Path(config.Config().kernel_stacks).parent)}
    assert helper["volumeMounts"] == [directory]
    assert [each for each in agent["volumeMounts"] if each not in alone["volumeMounts"]] == [
        {**directory, "readOnly": True}
    ]
    (volume,) = [each for each in spec["volumes"] if each["name"] == directory["name"]]
    assert set(volume) == {"name", "emptyDir"}


@pytest.mark.needs("helm", "kubernetes")
def test_the_chart_puts_sockets_and_snapshots_on_the_node() -> None:
    spec = pod(chart("--set", "runtimeDir=/run/ff", "--set", "stateDir=/srv/ff"))["spec"]
    places = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"] if "hostPath" in each}
    mounts = {each["name"]: each for each in spec["containers"][0]["volumeMounts"]}
    assert (places["run"], mounts["run"]["mountPath"]) == ("/run/ff", config.Config().runtime_dir)
    assert (places["state"], mounts["state"]["mountPath"]) == ("/srv/ff", config.Config().state_dir)
    # What is not its own it reads.
    assert {name for name in places if not mounts[name].get("readOnly")} == {"run", "state"}


@pytest.mark.needs("helm", "kubernetes")
def test_the_chart_lets_prometheus_ask_where_that_is_wanted() -> None:
    wanted = "metrics.enabled=true,metrics.port=9999"
    rendered = chart("--set", wanted, "--set-string", 'config=log_level = "info"')
    assert sorted(rendered) == ["ConfigMap", "DaemonSet", "NetworkPolicy"]
    told = config.parse(rendered["ConfigMap"]["data"]["agentd.toml"], "chart")
    assert (told.metrics.address, told.metrics.port) == ("0.0.0.0", 9999)
    assert rendered["NetworkPolicy"]["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": 9999}]}]
    operator = "metrics.serviceMonitor.enabled=true,metrics.serviceMonitor.labels.release=prometheus"
    rendered = chart("--set", f"{wanted},{operator}")
    # The monitor selects the service, which selects the pods, and both name a port that the pod has.
    monitor, service = rendered["ServiceMonitor"], rendered["Service"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= pod(rendered)["metadata"]["labels"].items()
    offered = [each["name"] for each in service["spec"]["ports"]]
    assert [each["port"] for each in monitor["spec"]["endpoints"]] == offered
    ports = pod(rendered)["spec"]["containers"][0]["ports"]
    assert [each["targetPort"] for each in service["spec"]["ports"]] == [each["name"] for each in ports]
    assert [each["containerPort"] for each in ports] == [9999]
    done = subprocess.run(
        [HELM, "template", str(CHART), "--set", "metrics.enabled=true", "--set-string", "config=[metrics]"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "config has a table [metrics] of its own" in done.stderr) == (1, True)


def test_every_value_of_the_chart_is_described_and_has_a_schema() -> None:
    text = (CHART / "values.yaml").read_text()
    schema = json.loads((CHART / "values.schema.json").read_text())

    def known(values: dict[str, Any], schema: dict[str, Any]) -> None:
        assert values.keys() <= schema["properties"].keys(), "helm would refuse its own values"
        assert schema["additionalProperties"] is False, "a misspelt value would pass"
        for name, value in values.items():
            if "properties" in schema["properties"][name]:
                known(value, schema["properties"][name])

    known(yaml.safe_load(text), schema)
    # Each block of the file, which the documentation shows as it is, begins with what it is about.
    for block in text.split("\n\n"):
        assert block.startswith(("#", "image:")), block


@pytest.mark.needs("kubernetes")
def test_the_hook_of_kubernetes_is_one() -> None:
    """What is to be added to a pod makes a pod that Kubernetes takes."""
    text = (PACKAGING / "kubernetes/capture-before-restart.yaml").read_text()
    added = yaml.safe_load(text)["spec"]
    added["containers"][0]["image"] = "engine"
    validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": added})
    assert added["volumes"][0]["hostPath"]["path"] == yaml.safe_load((CHART / "values.yaml").read_text())["runtimeDir"]


@pytest.mark.needs("helm", "kubernetes")
def test_the_chart_has_no_fault() -> None:
    done = subprocess.run([HELM, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    bad = subprocess.run(
        [HELM, "lint", str(CHART), "--set", "kernelStack=true"], capture_output=True, text=True, check=False
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
