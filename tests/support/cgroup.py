"""Real cgroups of this kernel's version-2 hierarchy, for processes that are to look like a service or a container."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.support.report import until

_HIERARCHY = next(
    (Path(each) for each in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup") if Path(each, "cgroup.controllers").exists()),
    Path("/sys/fs/cgroup"),
)


@contextlib.contextmanager
def in_cgroup(path: str, *pids: int) -> Iterator[None]:
    """Move processes into a cgroup, made for them; afterwards they go back to where they were and it is removed."""
    before = {pid: _version_2(pid) for pid in pids}
    made = []
    folder = _HIERARCHY
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
                (_HIERARCHY / place / "cgroup.procs").write_text(str(pid))
        for each in reversed(made):
            until(lambda each=each: _removed(each))


def _removed(folder: Path) -> bool:
    """A cgroup whose last process has just ended is busy for a moment."""
    with contextlib.suppress(OSError):
        os.rmdir(folder)
    return not folder.exists()


def _version_2(pid: int) -> str:
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    return next(line.removeprefix("0::/") for line in lines if line.startswith("0::"))
