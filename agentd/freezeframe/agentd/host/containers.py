"""Names of a container and where its log is, from the files of its runtime: Docker, containerd, CRI-O, Podman.

Where a runtime keeps its files elsewhere, the names are unknown and the log is not found. The files are those of root;
what they hold is escaped all the same. A read on dead storage can hang: workers only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from freezeframe.agentd.host import Host
from freezeframe.agentd.host.procfs import ProcfsError, read_file
from freezeframe.agentd.host.text import escape

_DOCKER = "var/lib/docker"
# Of CRI-O and Podman, run as root.
_STORAGE = "containers/storage/overlay-containers"
# The bundles of running containers, "{}" is the id.
_BUNDLES = (
    "run/containerd/io.containerd.runtime.v2.task/k8s.io/{}/config.json",
    f"run/{_STORAGE}/{{}}/userdata/config.json",
)
_LINKS = "var/log/containers"
# As kubelet names its links: names of Kubernetes have no "_".
_LINK = re.compile(r"(?P<pod>[a-z0-9.-]+)_(?P<namespace>[a-z0-9-]+)_(?P<name>[a-z0-9.-]+)-(?P<id>[0-9a-f]{64})\.log")
_ID = re.compile(r"[0-9a-f]{64}")
_JSON_BYTES = 4 * 1024 * 1024
_NAME_BYTES = 253
# Annotations of containerd, labels of CRI-O and of Docker under Kubernetes: pod, namespace, container.
_ANNOTATIONS = (
    ("io.kubernetes.cri.sandbox-name", "io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.container-name"),
    ("io.kubernetes.pod.name", "io.kubernetes.pod.namespace", "io.kubernetes.container.name"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What people call a container; empty where unknown."""

    pod: str = ""
    namespace: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLog:
    """Where the lines of a container go."""

    # "docker" for json-file, "cri", "journal" for the drivers of that name.
    kind: str
    # The file, below the host's root; empty for the journal.
    path: str = ""


def names_of(host: Host, container: str) -> Names:
    """Names of a container by its id."""
    if _ID.fullmatch(container) is None:
        return Names()
    for bundle in _BUNDLES:
        found = _named(_json(host, bundle.format(container)).get("annotations"))
        if found is not None:
            return found
    told = _json(host, f"{_docker_root(host)}/containers/{container}/config.v2.json")
    config = told.get("Config")
    found = _named(config.get("Labels") if isinstance(config, dict) else None)
    if found is not None:
        return found
    if told.get("Name"):
        return Names(name=_text(told["Name"]).lstrip("/"))
    if name := _podman_name(host, container):
        return Names(name=name)
    link = _link(host, container)
    return Names(pod=link["pod"], namespace=link["namespace"], name=link["name"]) if link else Names()


def log_of(host: Host, container: str) -> ContainerLog | None:
    """Where the log of a container is; None when it is not where runtimes put it."""
    if _ID.fullmatch(container) is None:
        return None
    folder = f"{_docker_root(host)}/containers/{container}"
    path = str(host.root / folder / f"{container}-json.log")
    if os.path.exists(path):
        return ContainerLog(kind="docker", path=path)
    driver = _json(host, f"{folder}/hostconfig.json").get("LogConfig")
    if isinstance(driver, dict) and driver.get("Type") == "journald":
        return ContainerLog(kind="journal")
    link = _link(host, container)
    found = _resolve(host, f"{_LINKS}/{link[0]}") if link else ""
    # Podman writes it in the same form.
    found = found or _resolve(host, f"var/lib/{_STORAGE}/{container}/userdata/ctr.log")
    if found:
        return ContainerLog(kind="cri", path=found)
    if _podman_name(host, container):
        return ContainerLog(kind="journal")
    return None


def _docker_root(host: Host) -> str:
    told = _json(host, "etc/docker/daemon.json").get("data-root")
    return told.strip("/") if isinstance(told, str) and told.startswith("/") else _DOCKER


def _podman_name(host: Host, container: str) -> str:
    told = _read_json(host, f"var/lib/{_STORAGE}/containers.json")
    for each in told if isinstance(told, list) else ():
        if isinstance(each, dict) and each.get("id") == container and isinstance(each.get("names"), list):
            return next((_text(name) for name in each["names"]), "")
    return ""


def _link(host: Host, container: str) -> re.Match[str] | None:
    """Find the link that kubelet makes for each container."""
    try:
        listed = os.listdir(host.root / _LINKS)
    except OSError:
        return None
    matches = (_LINK.fullmatch(name) for name in listed if name.endswith(f"-{container}.log"))
    return next((found for found in matches if found is not None), None)


def _resolve(host: Host, path: str) -> str:
    """Follow links whose targets are absolute on the host, which may be mounted below a root of its own."""
    for _ in range(4):
        place = str(host.root / path.lstrip("/"))
        if not os.path.islink(place):
            return place if os.path.exists(place) else ""
        path = os.path.normpath(os.path.join("/", os.path.dirname(path), os.readlink(place)))
    return ""


def _named(labels: Any) -> Names | None:
    if not isinstance(labels, Mapping):
        return None
    for pod, namespace, name in _ANNOTATIONS:
        if labels.get(pod):
            return Names(pod=_text(labels[pod]), namespace=_text(labels.get(namespace)), name=_text(labels.get(name)))
    return None


def _text(value: Any) -> str:
    return escape(value.encode("utf-8", "surrogatepass"), _NAME_BYTES) if isinstance(value, str) else ""


def _json(host: Host, path: str) -> dict[str, Any]:
    told = _read_json(host, path)
    return told if isinstance(told, dict) else {}


def _read_json(host: Host, path: str) -> Any:
    try:
        return json.loads(read_file(str(host.root / path), _JSON_BYTES))
    except (ProcfsError, ValueError, RecursionError):
        return None
