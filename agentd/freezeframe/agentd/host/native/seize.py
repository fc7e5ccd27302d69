"""Stopping one running thread for its registers: by ptrace, never asked for but with allow_seize.

The thread is stopped for some 100 microseconds and sees EINTR from some system calls. If this process is killed while
it holds a thread, the kernel lets the thread go on.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType

from freezeframe.agentd.host.native.machine import Machine, Registers

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_GETREGSET, _DETACH, _SEIZE, _INTERRUPT = 0x4204, 17, 0x4206, 0x4207
_NT_PRSTATUS = 1
_WALL = 0x40000000
# A thread that does not stop within this time, seconds, is let go.
_LIMIT_S = 0.02
_REGISTER_WORDS = 64


class SeizeError(Exception):
    """The thread could not be stopped or its registers not read."""


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


# struct user_regs of PTRACE_GETREGSET has the layout of pt_regs on both: words beyond fs_base are not used.
_SAME_LAYOUT: MappingProxyType[str, bool] = MappingProxyType({"x86_64": True, "aarch64": True})


@contextmanager
def registers(tid: int, machine: Machine, monotonic: Callable[[], float] = time.monotonic) -> Iterator[Registers]:
    """Stop a thread and give its registers as a record; it runs on when the block ends. Raises SeizeError."""
    if not _SAME_LAYOUT.get(machine.name):
        raise SeizeError(f"no register layout for {machine.name}")
    if _libc.ptrace(_SEIZE, tid, None, None) < 0:
        raise SeizeError(f"stopping thread {tid}: {os.strerror(ctypes.get_errno())}")
    try:
        _libc.ptrace(_INTERRUPT, tid, None, None)
        _wait_until_stopped(tid, monotonic)
        words = (ctypes.c_uint64 * _REGISTER_WORDS)()
        vector = _IoVec(ctypes.addressof(words), ctypes.sizeof(words))
        if _libc.ptrace(_GETREGSET, tid, _NT_PRSTATUS, ctypes.addressof(vector)) < 0:
            raise SeizeError(f"reading the registers of thread {tid}: {os.strerror(ctypes.get_errno())}")
        yield tuple(words[word] for word in machine.words)
    finally:
        # Refused for a thread that never stopped; it is let go when this process ends.
        _libc.ptrace(_DETACH, tid, None, None)


def _wait_until_stopped(tid: int, monotonic: Callable[[], float]) -> None:
    give_up = monotonic() + _LIMIT_S
    while True:
        try:
            pid, _ = os.waitpid(tid, _WALL | os.WNOHANG)
        except ChildProcessError as error:
            raise SeizeError(f"stopping thread {tid}: it ended") from error
        if pid:
            return
        if monotonic() > give_up:
            raise SeizeError(f"thread {tid} did not stop within {_LIMIT_S * 1000:.0f} ms")
        time.sleep(20e-6)
