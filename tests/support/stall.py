"""A file that cannot be read for a while, and a process whose memory cannot: what a worker hangs on in the kernel."""

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

from freezeframe.agentd.host import Host, procfs
from tests.support.children import PROGRAMS
from tests.support.report import until

PROGRAM = PROGRAMS / "fuse_stall.py"
READER = "import os,sys\nos.pread(os.open(sys.argv[1], os.O_RDONLY), 8, int(sys.argv[2], 16))"
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
def stalled_file(folder: Path, *, direct: bool = True, watchdog_s: float = WATCHDOG_S) -> Iterator[Stall]:
    """Mount one below `folder`; needs("fuse"). It answers by itself after `watchdog_s`."""
    mountpoint = folder / "stall"
    mountpoint.mkdir()
    arguments = [sys.executable, str(PROGRAM), str(mountpoint), str(watchdog_s), *(["direct"] if direct else [])]
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


def state(pid: int) -> str:
    return procfs.stat(Host().proc(pid)).state


@contextlib.contextmanager
def stalled_process(folder: Path) -> Iterator[int]:
    """Give the pid of a process whose memory lock cannot be taken, for WATCHDOG_S at most; needs("fuse").

    A reader of /proc/PID/mem faults on a page that never comes and holds the lock; a mapping call of the target queues
    for it, and every other reader of that memory behind.
    """
    with stalled_file(folder, direct=False) as stall, contextlib.ExitStack() as stack:
        command = [sys.executable, str(PROGRAMS / "mapped_page.py"), stall.path]
        one = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        stack.callback(one.kill)
        address = one.stdout.readline().decode().strip()
        command = [sys.executable, "-c", READER, f"/proc/{one.pid}/mem", address]
        reader = stack.enter_context(subprocess.Popen(command, stderr=subprocess.DEVNULL))
        stack.callback(reader.kill)
        stack.callback(stall.release)
        until(lambda: state(reader.pid) == "D")
        one.stdin.write(b"\n")
        one.stdin.flush()
        until(lambda: state(one.pid) == "D")
        yield one.pid
