"""gdb, asked for all stacks of processes: without what a user's own set-up or a network may add."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable

_QUIET = ("-batch", "-nx", "-iex", "set auto-load off", "-iex", "set debuginfod enabled off")
# The pid comes behind.
GDB = ("gdb", *_QUIET, "-ex", "thread apply all bt", "-p")


def stacks_ms(pids: Iterable[int]) -> float:
    """How long it takes for these, one after the other."""
    begin = time.perf_counter()
    for pid in pids:
        subprocess.run([*GDB, str(pid)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=120)
    return 1000.0 * (time.perf_counter() - begin)
