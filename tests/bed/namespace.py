"""A network namespace of the bed's own, in which packets can be dropped without touching anybody else's."""

from __future__ import annotations

import ctypes
import os
import subprocess
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing_extensions import Self

CLONE_NEWNET = 0x40000000  # linux/sched.h
_libc = ctypes.CDLL(None, use_errno=True)
T = TypeVar("T")


class Namespace:
    """Lives for as long as its descriptor, or a process in it; needs root."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def make(cls) -> Self:
        """Make one whose loopback is up."""

        def leave() -> int:
            _check(_libc.unshare(CLONE_NEWNET), "unshare")
            return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

        made = cls(_in_a_thread(leave))
        made.run("ip", "link", "set", "lo", "up")
        return made

    @property
    def path(self) -> str:
        """Where other processes of this user find it."""
        return f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def inside(self, function: Callable[[], T]) -> T:
        """Call `function` in a thread that is in the namespace."""

        def enter() -> T:
            _check(_libc.setns(self._descriptor, CLONE_NEWNET), "setns")
            return function()

        return _in_a_thread(enter)

    def run(self, *command: str) -> None:
        """Run a command in it."""
        self.inside(lambda: subprocess.run(command, check=True, capture_output=True))

    def drop_packets_to(self, port: int) -> None:
        """From now on no TCP segment reaches this port; established connections stay."""
        self.run("iptables", "-A", "INPUT", "-p", "tcp", "--dport", str(port), "-j", "DROP")

    def drop_nothing(self) -> None:
        self.run("iptables", "-F", "INPUT")

    def close(self) -> None:
        os.close(self._descriptor)


def _in_a_thread(function: Callable[[], T]) -> T:
    """A thread may change its namespace without changing that of its process; the result, or what was raised."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _check(result: int, call: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), call)
