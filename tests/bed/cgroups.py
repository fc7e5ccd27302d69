"""A cgroup of the bed's own: of version 2 where that is mounted, for the CPU quota also of version 1. Needs root."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Cgroup:
    """One cgroup, removed by `made`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    @contextlib.contextmanager
    def made(cls, name: str, *, controller: str = "") -> Iterator[Self]:
        """Make a cgroup below the root; at the end its processes go back to the root and it is removed."""
        root = _root(controller)
        group = cls(root / name)
        group.path.mkdir()
        try:
            yield group
        finally:
            for pid in (group.path / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):  # it has ended
                    (root / "cgroup.procs").write_text(pid)
            group.path.rmdir()

    def take(self, *pids: int) -> None:
        """Move processes into it, with all their threads."""
        for pid in pids:
            (self.path / "cgroup.procs").write_text(str(pid))

    def freeze(self) -> None:
        """Stop all its processes; returns when they are."""
        (self.path / "cgroup.freeze").write_text("1")
        deadline = time.monotonic() + 5
        while "frozen 1" not in (self.path / "cgroup.events").read_text() and time.monotonic() < deadline:
            time.sleep(0.01)

    def thaw(self) -> None:
        (self.path / "cgroup.freeze").write_text("0")

    def limit_cpu(self, *, quota_us: int, period_us: int) -> None:
        """Grant so much CPU time in each period at most."""
        if (self.path / "cpu.max").exists():
            (self.path / "cpu.max").write_text(f"{quota_us} {period_us}")
            return
        (self.path / "cpu.cfs_period_us").write_text(str(period_us))
        (self.path / "cpu.cfs_quota_us").write_text(str(quota_us))

    def lift_limit(self) -> None:
        """Grant all CPU time again; a process that ends needs some too."""
        if (self.path / "cpu.max").exists():
            (self.path / "cpu.max").write_text("max")
        else:
            (self.path / "cpu.cfs_quota_us").write_text("-1")


def _root(controller: str) -> Path:
    """Where cgroups with this controller are made; every one of version 2 can be frozen."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, where, kind, options, *_ = line.split()
        if kind == "cgroup" and controller and controller in options.split(","):
            return Path(where)
        if kind == "cgroup2":
            enabled = (Path(where) / "cgroup.subtree_control").read_text().split()
            if not controller or controller in enabled:
                return Path(where)
    raise OSError(f"no cgroup file system with {controller or 'a freezer'} is mounted")
