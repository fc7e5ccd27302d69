"""Who a contained process is: real cgroups and pid namespaces of this kernel, made-up files of the runtimes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from freezeframe.agentd.collectors.find_processes import FIND_PROCESSES
from freezeframe.agentd.collectors.read_command_lines import READ_COMMAND_LINES
from freezeframe.agentd.host import Host
from freezeframe.agentd.host.procfs import status
from freezeframe.judge.model import Process
from tests.support.cgroup import VERSION_1, VERSION_2, in_cgroup
from tests.support.report import run, target

pytestmark = pytest.mark.needs("root")

CONTAINER = "5e" * 32
POD = "kubepods.slice/kubepods-pod3b6f5e0a_1111_4222_8333_9d4c5b6a7f80.slice"
CONTAINERD = f"{POD}/cri-containerd-{CONTAINER}.scope"
CRIO = f"{POD}/crio-{CONTAINER}.scope"
DOCKER = f"system.slice/docker-{CONTAINER}.scope"
CGROUPFS = f"kubepods/burstable/pod3b6f5e0a-1111-4222-8333-9d4c5b6a7f80/{CONTAINER}"


@contextmanager
def contained(cgroup: str, hierarchy: Path = VERSION_2) -> Iterator[int]:
    """A process with pid 1 in a pid namespace of its own, in a real cgroup."""
    code = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    unshare = subprocess.Popen(
        ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert unshare.stdout is not None
    assert unshare.stdout.readline() == b"1\n"
    (pid,) = map(int, Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text().split())
    try:
        with in_cgroup(cgroup, pid, hierarchy=hierarchy):
            yield pid
            assert status(f"/proc/{pid}").namespace_pids == (pid, 1)
    finally:
        unshare.communicate()


def see(root: Path, pid: int) -> Process:
    """What the first two steps of a capture say of it."""
    (root / "proc").symlink_to("/proc")
    host = Host(root=root)
    found = run(FIND_PROCESSES, host=host)
    found.gathered.add(run(READ_COMMAND_LINES, [target(pid)], host=host).snapshot())
    (process,) = [each for each in found.snapshot().processes if each.pid == pid]
    return process


def write(root: Path, path: str, content: object) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(json.dumps(content))


def link(root: Path) -> None:
    (root / "var/log/containers").mkdir(parents=True)
    (root / f"var/log/containers/router-0_serving_router-{CONTAINER}.log").symlink_to("/var/log/pods/x/router/0.log")


def containerd(root: Path) -> None:
    annotations = {
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": "router",
        "io.kubernetes.cri.sandbox-name": "router-0",
        "io.kubernetes.cri.sandbox-namespace": "serving",
    }
    path = f"run/containerd/io.containerd.runtime.v2.task/k8s.io/{CONTAINER}/config.json"
    write(root, path, {"ociVersion": "1.1.0", "annotations": annotations})


def crio(root: Path) -> None:
    annotations = {
        "io.kubernetes.container.name": "router",
        "io.kubernetes.pod.name": "router-0",
        "io.kubernetes.pod.namespace": "serving",
    }
    path = f"run/containers/storage/overlay-containers/{CONTAINER}/userdata/config.json"
    write(root, path, {"ociVersion": "1.1.0", "annotations": annotations})


def docker_under_kubernetes(root: Path) -> None:
    labels = {
        "io.kubernetes.container.name": "router",
        "io.kubernetes.pod.name": "router-0",
        "io.kubernetes.pod.namespace": "serving",
    }
    name = "/k8s_router_router-0_serving_3b6f5e0a_0"
    write(root, f"var/lib/docker/containers/{CONTAINER}/config.v2.json", {"Name": name, "Config": {"Labels": labels}})


@pytest.mark.parametrize(
    ("cgroup", "files"),
    [
        (CONTAINERD, containerd), (CRIO, crio), (CONTAINERD, link), (CGROUPFS, link),
        (DOCKER, docker_under_kubernetes), (f"docker/{CONTAINER}", docker_under_kubernetes),
    ],
)  # fmt: skip
def test_a_pod_with_its_namespace_and_container(tmp_path: Path, cgroup: str, files: object) -> None:
    files(tmp_path)  # type: ignore[operator]
    with contained(cgroup) as pid:
        process = see(tmp_path, pid)
    assert (process.pod, process.namespace, process.container_name) == ("router-0", "serving", "router")
    assert (process.container, process.container_pid, process.pid) == (CONTAINER, 1, pid)
    assert process.cgroup == f"/{cgroup}"


@pytest.mark.skipif(not VERSION_1.exists(), reason="no cgroups of version 1 here")
def test_a_container_in_a_hierarchy_of_version_1(tmp_path: Path) -> None:
    docker_under_kubernetes(tmp_path)
    with contained(f"docker/{CONTAINER}", VERSION_1) as pid:
        process = see(tmp_path, pid)
    assert (process.pod, process.namespace, process.container_name) == ("router-0", "serving", "router")
    assert (process.container, process.cgroup) == (CONTAINER, f"/docker/{CONTAINER}")


def test_a_container_of_docker_alone_has_a_name(tmp_path: Path) -> None:
    write(tmp_path, "etc/docker/daemon.json", {"data-root": "/data/docker"})
    told = {"Name": "/sglang\x1b[31m", "Config": {"Labels": {"a": "b"}}}
    write(tmp_path, f"data/docker/containers/{CONTAINER}/config.v2.json", told)
    with contained(DOCKER) as pid:
        process = see(tmp_path, pid)
    assert (process.pod, process.namespace, process.container_name) == ("", "", "sglang\\x1b[31m")


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b'{"annotations": 7}', b'{"annotations": {"io.kubernetes.pod.name": 7}}']
)
def test_files_of_another_shape_name_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / f"run/containerd/io.containerd.runtime.v2.task/k8s.io/{CONTAINER}/config.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with contained(CONTAINERD) as pid:
        process = see(tmp_path, pid)
    assert (process.pod, process.namespace, process.container_name, process.container) == ("", "", "", CONTAINER)


def test_a_container_of_podman_has_a_name(tmp_path: Path) -> None:
    path = "var/lib/containers/storage/overlay-containers/containers.json"
    write(tmp_path, path, [{"id": "7" * 64, "names": ["x"]}, {"id": CONTAINER, "names": ["sglang"]}])
    write(tmp_path, f"run/containers/storage/overlay-containers/{CONTAINER}/userdata/config.json", {"annotations": {}})
    with contained(f"machine.slice/libpod-{CONTAINER}.scope/container") as pid:
        process = see(tmp_path, pid)
    assert (process.container, process.container_name, process.pod) == (CONTAINER, "sglang", "")
