"""Workers and their helper programs as process groups, which outlive a worker whose helper is stuck."""

from __future__ import annotations

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper() -> None:
    """Take over orphans below this process: a helper whose worker is dead is still seen and reaped."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with_parent(parent: int, signal_number: int) -> None:
    """Have this process signalled when the thread that forked it ends; ends at once when that has happened already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def group_lives(group: int) -> bool:
    """Whether a process group has a process left, zombies included. Touches none of them."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
