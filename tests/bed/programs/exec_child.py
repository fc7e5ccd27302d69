"""``exec_child.py PARENT_PID DATA_BYTES NETWORK COMMAND...``: become COMMAND, capped and tied to its parent.

The process is killed by the kernel when the thread that started it ends, and may have at most DATA_BYTES of private
writable memory (RLIMIT_DATA; RLIMIT_AS would count shared libraries and reserved address space too). Both outlive the
exec. NETWORK is the path of a network namespace to enter, or empty. A program and not a ``preexec_fn``, which is
unsafe, and warns, in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import bedlink

CLONE_NEWNET = 0x40000000  # linux/sched.h


def enter_network(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"setns {path}")


if __name__ == "__main__":
    bedlink.die_with_parent(int(sys.argv[1]))
    data = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (data, data))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.argv[3]:
        enter_network(sys.argv[3])
    os.execv(sys.argv[4], sys.argv[4:])
