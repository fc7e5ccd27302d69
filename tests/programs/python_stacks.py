"""A Python program whose stacks are known: the main thread in outer -> inner, one in rest, one in spin if asked."""

from __future__ import annotations

import sys
import threading
import time


def inner(event: threading.Event) -> None:
    event.wait()  # line of inner


def outer() -> None:
    inner(threading.Event())  # line of outer


def rest() -> None:
    time.sleep(600)  # line of rest


def spin() -> None:
    while True:
        pass


threading.Thread(target=rest, name="helper-thread", daemon=True).start()
if sys.argv[1:] == ["spin"]:
    threading.Thread(target=spin, name="spinning", daemon=True).start()
print("ready", flush=True)
outer()
