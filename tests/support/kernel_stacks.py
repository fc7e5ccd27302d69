"""The helper for kernel stacks with its two capabilities: as nobody, like its unit, or as root, like its container."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.support.report import until

NOBODY = 65534


def as_nobody(*capabilities: str) -> list[str]:
    """Give what begins the command line of a program that has these alone, as setpriv spells them."""
    return _as(NOBODY, *capabilities)


def as_root(*capabilities: str) -> list[str]:
    """Give the same of root: what a container of the chart is."""
    return _as(0, *capabilities)


def _as(uid: int, *capabilities: str) -> list[str]:
    alone = ",".join(["-all", *(f"+{each}" for each in capabilities)])
    return [
        "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs",
        f"--inh-caps={alone}", f"--ambient-caps={alone}", f"--bounding-set={alone}",
    ]  # fmt: skip


@contextlib.contextmanager
def running_helper(uid: int = NOBODY) -> Iterator[Path]:
    """Run it; its socket, in a directory that is that user's."""
    with tempfile.TemporaryDirectory(prefix="freezeframe-test-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        own = folder / "kernel-stacks"
        own.mkdir(mode=0o700)
        os.chown(own, uid, uid)
        path = own / "socket"
        process = subprocess.Popen(
            [
                *_as(uid, "sys_admin", "dac_read_search"),
                sys.executable, "-I", "-m", "freezeframe.agentd.kernel_stacks", str(path),
            ],
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            until(path.exists, seconds=60)
            yield path
        finally:
            process.terminate()
            process.wait(20)
