"""The helper for kernel stacks as its unit starts it: as nobody, with two capabilities, in a directory of its own."""

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
    alone = ",".join(["-all", *(f"+{each}" for each in capabilities)])
    return [
        "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs",
        f"--inh-caps={alone}", f"--ambient-caps={alone}", f"--bounding-set={alone}",
    ]  # fmt: skip


@contextlib.contextmanager
def running_helper() -> Iterator[Path]:
    """Run it; its socket, in a directory that is nobody's."""
    with tempfile.TemporaryDirectory(prefix="freezeframe-test-") as name:
        folder = Path(name)
        folder.chmod(0o711)
        own = folder / "kernel-stacks"
        own.mkdir(mode=0o700)
        os.chown(own, NOBODY, NOBODY)
        path = own / "socket"
        process = subprocess.Popen(
            [
                *as_nobody("sys_admin", "dac_read_search"),
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
