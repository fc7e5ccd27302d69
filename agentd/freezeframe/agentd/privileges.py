"""What the agent's processes may do, and how they are scheduled."""

from __future__ import annotations

import contextlib
import ctypes
import os

_PR_SET_NO_NEW_PRIVS = 38
_PR_CAPBSET_DROP = 24
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63
_NICE = -20
_OOM_SCORE = "-500"


def drop_all() -> None:
    """Give up every capability for good; root's own files stay reachable as their owner. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for capability in range(_LAST_CAPABILITY + 1):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # EINVAL past the last one, EPERM where there is none to drop
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    if libc.capset(header, nothing) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"dropping capabilities: {os.strerror(code)}")
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"setting no_new_privs: {os.strerror(code)}")


def run_when_starved() -> None:
    """Put this process, and what it starts, before everything else on a starved host, where that is allowed.

    Under systemd the unit's CPUWeight does it, and nice within the unit's own cgroup changes nothing.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, _NICE)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as stream:
        stream.write(_OOM_SCORE)
