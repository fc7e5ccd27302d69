"""Making a socket in the network namespace of a process: it stays with that namespace, the thread goes back.

Needs CAP_SYS_ADMIN. Nothing of the process is touched: only its /proc/PID/ns/net is opened.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

_CLONE_NEWNET = 0x40000000


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Be in the network namespace of that file ("/proc/4711/ns/net"); "" stays at home. Raises OSError."""
    if not namespace:
        yield
        return
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _enter(home)
    finally:
        os.close(home)


def _enter(descriptor: int) -> None:
    # os.setns came with Python 3.12.
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
