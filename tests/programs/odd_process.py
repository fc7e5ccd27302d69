"""One process in a state that a lock-up brings, by name; prints what the test needs to know of it, then stays."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_NAME, PTRACE_SEIZE, SYS_VFORK, SYS_EXIT, SYS_PAUSE = 15, 0x4206, 58, 60, 34


def zombie() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    print(pid, flush=True)
    time.sleep(600)


def zombie_leader() -> None:
    threading.Thread(target=time.sleep, args=(600,)).start()
    print(os.getpid(), flush=True)
    LIBC.syscall(SYS_EXIT, 0)  # this thread only


def vfork_parent() -> None:
    print(os.getpid(), flush=True)
    LIBC.syscall.restype = ctypes.c_long
    if LIBC.syscall(SYS_VFORK) == 0:
        LIBC.syscall(SYS_PAUSE)
        os._exit(0)


def tracer() -> None:
    LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    assert LIBC.ptrace(PTRACE_SEIZE, int(sys.argv[2]), None, None) == 0
    print(os.getpid(), flush=True)
    time.sleep(600)


def hostile() -> None:
    name = bytes.fromhex(sys.argv[2])

    def thread() -> None:
        LIBC.prctl(PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0)
        named.set()
        time.sleep(600)

    named = threading.Event()
    threading.Thread(target=thread, daemon=True).start()
    LIBC.prctl(PR_SET_NAME, ctypes.c_char_p(name), 0, 0, 0)
    named.wait()
    print(os.getpid(), flush=True)
    time.sleep(600)


if __name__ == "__main__":
    {each.__name__: each for each in (zombie, zombie_leader, vfork_parent, tracer, hostile)}[sys.argv[1]]()
