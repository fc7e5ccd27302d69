"""A file that cannot be read for a while, beyond SIGKILL: what a worker stuck in the kernel is stuck on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "programs" / "fuse_stall.py"
# Nothing may stay stuck for longer, whatever becomes of the test.
WATCHDOG_S = 8.0
_MNT_DETACH = 2


@dataclass(frozen=True, kw_only=True)
class Stall:
    # Its reads hang until `release`.
    path: str
    server: subprocess.Popen[bytes]

    def release(self) -> None:
        self.server.send_signal(signal.SIGUSR1)


@contextlib.contextmanager
def stalled_file(folder: Path, *, direct: bool = True) -> Iterator[Stall]:
    """Mount one below `folder`; needs("fuse")."""
    mountpoint = folder / "stall"
    mountpoint.mkdir()
    arguments = [sys.executable, str(PROGRAM), str(mountpoint), str(WATCHDOG_S), *(["direct"] if direct else [])]
    server = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == b"ready\n"
        yield Stall(path=f"{mountpoint}/page", server=server)
    finally:
        server.send_signal(signal.SIGUSR1)
        server.send_signal(signal.SIGTERM)
        server.wait(5)
        server.stdout.close()
        # In case the server ended without.
        ctypes.CDLL(None).umount2(os.fsencode(mountpoint), _MNT_DETACH)
