"""cgroups: what the path of a process says of it, and what its controllers say. Versions 1, 2 and both at once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from freezeframe.agentd.host import Host
from freezeframe.agentd.host.procfs import ProcfsError, read_file
from freezeframe.agentd.host.text import escape


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    """Where a process stands, from /proc/PID/cgroup."""

    # Path in version 2, else that of the cpu controller; escaped.
    path: str
    # Innermost systemd unit that is no container's; empty when none.
    unit: str
    # Container id; empty when none.
    container: str
    # Paths as bytes, by controller; "" is version 2.
    paths: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuLimit:
    """CPU bandwidth of one cgroup, counters since its start."""

    # Path, escaped.
    cgroup: str
    # CPUs that the quota grants.
    quota_cpus: float
    periods: int
    throttled_periods: int
    throttled_ms: float


# 64 hexadecimal digits stand for a container in docker, containerd, cri-o and podman, under each one's prefixes:
#   /docker/ID  docker-ID.scope  cri-containerd-ID.scope  crio-ID.scope  libpod-ID.scope  /kubepods/…/podUID/ID
#   /kubepods-….slice:cri-containerd:ID   conmon's own scope (crio-conmon-ID, libpod-conmon-ID) is not the container.
# Amazon's ECS has /ecs/TASK/TASK-NUMBER.
_CONTAINER = re.compile(rb"(?:^|[-:])([0-9a-f]{64})(?:\.scope)?$")
_ECS_CONTAINER = re.compile(rb"^[0-9a-f]{32}-\d{5,}$")
_UNIT = re.compile(rb"\.(?:service|scope)$")


@lru_cache(maxsize=1024)
def parse_cgroup(data: bytes) -> Cgroup:
    """Parse /proc/PID/cgroup; lines that are none are left out."""
    paths: dict[str, bytes] = {}
    for line in data.split(b"\n"):
        _, colon, rest = line.partition(b":")
        controllers, second_colon, path = rest.partition(b":")
        if not (colon and second_colon and path.startswith(b"/")):
            continue
        for controller in controllers.split(b","):
            paths.setdefault(escape(controller, 64), path)
    unified = paths.get("", b"")
    cpu = paths.get("cpu", b"")
    # Where both versions are mounted, the controllers may live in version 1 and the version-2 path be the root.
    path = cpu if unified in {b"", b"/"} and cpu else unified
    named = [path, unified, paths.get("name=systemd", b""), *paths.values()]
    return Cgroup(
        path=escape(path),
        unit=next(filter(None, map(_unit, named)), ""),
        container=next(filter(None, map(_container, named)), ""),
        paths=tuple(paths.items()),
    )


def _container(path: bytes) -> str:
    for part in reversed(path.split(b"/")):
        found = _CONTAINER.search(part)
        if found is not None and b"conmon" not in part:
            return found[1].decode()
        if _ECS_CONTAINER.match(part) is not None:
            return part.decode()
    return ""


def _unit(path: bytes) -> str:
    for part in reversed(path.split(b"/")):
        if _UNIT.search(part) is not None and _CONTAINER.search(part) is None:
            return escape(part, 256)
    return ""


def is_frozen(host: Host, cgroup: Cgroup) -> bool:
    """Tell whether a process's cgroup or one above it is frozen; False when it cannot be told."""
    paths = dict(cgroup.paths)
    if "freezer" in paths and b"FROZEN" in _lookup(host, "freezer", paths["freezer"], "freezer.state"):
        return True
    return b"frozen 1" in _lookup(host, "", paths.get("", b"/"), "cgroup.events").split(b"\n")


def cpu_limits(host: Host, cgroup: Cgroup) -> tuple[CpuLimit, ...]:
    """CPU limits of a process's cgroup and of those above it, innermost first; only those with a quota."""
    paths = dict(cgroup.paths)
    controller = "cpu" if "cpu" in paths else ""
    found = []
    path = paths.get(controller, b"").rstrip(b"/")
    while path:
        limit = _cpu_limit(host, controller, path)
        if limit is not None:
            found.append(limit)
        path = path.rpartition(b"/")[0]
    return tuple(found)


def pressure_path(cgroup: Cgroup) -> bytes:
    """Path in version 2, which alone keeps pressure per cgroup; b"" for the root or none."""
    return dict(cgroup.paths).get("", b"").rstrip(b"/")


def read_pressure(host: Host, path: bytes, resource: str) -> bytes:
    """Read a version-2 cgroup's pressure file; b"" where there is none."""
    return _lookup(host, "", path, f"{resource}.pressure")


def _cpu_limit(host: Host, controller: str, path: bytes) -> CpuLimit | None:
    if controller:
        quota = _lookup(host, controller, path, "cpu.cfs_quota_us").strip()
        period = _lookup(host, controller, path, "cpu.cfs_period_us").strip()
    else:
        quota, _, period = _lookup(host, controller, path, "cpu.max").strip().partition(b" ")
    counters = dict(
        line.split(b" ", 1) for line in _lookup(host, controller, path, "cpu.stat").split(b"\n") if b" " in line
    )
    try:
        if int(quota) <= 0 or int(period) <= 0:
            return None
        nanoseconds = int(counters.get(b"throttled_time", b"0"))
        microseconds = int(counters.get(b"throttled_usec", b"0"))
        return CpuLimit(
            cgroup=escape(path),
            quota_cpus=int(quota) / int(period),
            periods=int(counters.get(b"nr_periods", b"0")),
            throttled_periods=int(counters.get(b"nr_throttled", b"0")),
            throttled_ms=nanoseconds / 1e6 + microseconds / 1e3,
        )
    except ValueError:
        # "max", or no such file.
        return None


def _lookup(host: Host, controller: str, path: bytes, name: str) -> bytes:
    """Read one file of a cgroup where systemd mounts it; b"" when it is not there."""
    if b".." in path.split(b"/") or b"\0" in path:
        # The cgroup lies above what this namespace shows, or a recorded tree is hostile.
        return b""
    relative = path.decode("utf-8", "surrogateescape")
    mounts = (controller,) if controller else ("", "unified")
    for mount in mounts:
        parts = (str(host.root), "sys/fs/cgroup", mount, relative.strip("/"), name)
        try:
            return read_file("/".join(part.rstrip("/") for part in parts if part))
        except ProcfsError:
            continue
    return b""
