"""One thread holds a C mutex and wants the interpreter lock; the other holds the interpreter lock.

usage: gil_and_mutex.py SCENE; prints "ready". "deadlock": the other wants the mutex. "sleeps": it sleeps for long.
"locks": no mutex, two threads wait for threading.Locks that the main thread holds. "busy": threads contend for the
interpreter lock.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

scene = sys.argv[1]
with_lock, without_lock = ctypes.PyDLL(None), ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(64)
ends = os.pipe()


def say_ready() -> None:
    # From another process, since no Python runs in this one any more.
    if os.fork() == 0:
        without_lock.usleep(300_000)
        os.write(1, b"ready\n")
        os._exit(0)


def holds_the_mutex() -> None:
    # Without the interpreter lock: takes the mutex in one call, then sleeps, and wants the interpreter lock back.
    without_lock.pthread_mutex_lock(mutex)
    os.write(ends[1], b"x")
    without_lock.usleep(100_000)
    without_lock.pthread_mutex_unlock(mutex)


def spin() -> None:
    while True:
        pass


if scene in {"deadlock", "sleeps"}:
    threading.Thread(target=holds_the_mutex, daemon=True).start()
    os.read(ends[0], 1)
    say_ready()
    if scene == "deadlock":
        with_lock.pthread_mutex_lock(mutex)
    else:
        with_lock.sleep(100_000)
elif scene == "locks":
    locks = [threading.Lock(), threading.Lock()]
    for lock in locks:
        lock.acquire()
    for lock in locks:
        threading.Thread(target=lock.acquire, daemon=True).start()
    say_ready()
    signal.pause()
else:
    for _ in range(3):
        threading.Thread(target=spin, daemon=True).start()
    print("ready", flush=True)
    spin()
