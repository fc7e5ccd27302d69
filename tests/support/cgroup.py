"""Real cgroups of this kernel's version-2 hierarchy, for processes that are to look like a service or a container."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.support.report import until

VERSION_2 = next(
    (Path(each) for each in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup") if Path(each, "cgroup.controllers").exists()),
    Path("/sys/fs/cgroup"),
)
# Not mounted where the host has version 2 alone.
VERSION_1 = Path("/sys/fs/cgroup/cpu")


@contextlib.contextmanager
def in_cgroup(path: str, *pids: int, hierarchy: Path = VERSION_2) -> Iterator[None]:
    """Move processes into a cgroup, made for them; afterwards they go back to where they were and it is removed."""
    before = {pid: _place(pid, hierarchy) for pid in pids}
    made = []
    folder = hierarchy
    for part in path.strip("/").split("/"):
        folder /= part
        if not folder.exists():
            folder.mkdir()
            made.append(folder)
    try:
        for pid in pids:
            (folder / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for pid, place in before.items():
            with contextlib.suppress(ProcessLookupError):
                (hierarchy / place / "cgroup.procs").write_text(str(pid))
        for each in reversed(made):
            until(lambda each=each: _removed(each))


def _removed(folder: Path) -> bool:
    """A cgroup whose last process has just ended is busy for a moment."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)
    return not folder.exists()


def _place(pid: int, hierarchy: Path) -> str:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    controllers = "" if hierarchy == VERSION_2 else hierarchy.name
    return next(path.lstrip("/") for _, named, path in (line.split(":", 2) for line in lines) if named == controllers)
