"""``exec_child.py PARENT_PID DATA_BYTES COMMAND...``: become COMMAND, capped and tied to its parent.

The process is killed by the kernel when the thread that started it ends, and may have at most DATA_BYTES of private
writable memory (RLIMIT_DATA; RLIMIT_AS would count shared libraries and reserved address space too). Both outlive the
exec. A program and not a ``preexec_fn``, which is unsafe, and warns, in a process with threads.
"""

from __future__ import annotations

import os
import resource
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import bedlink

if __name__ == "__main__":
    bedlink.die_with_parent(int(sys.argv[1]))
    data = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (data, data))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.execv(sys.argv[3], sys.argv[3:])
