"""Futexes of watched processes: what went on at each address; and when each of their threads last began to wait.

A wait in progress has no end that a program could see: the threads' own files in /proc say which wait it is, and
`switched_out` since when.
"""

from __future__ import annotations

from dataclasses import dataclass

from freezeframe.agentd.bpf import layout
from freezeframe.agentd.bpf.layout import FutexState
from freezeframe.agentd.bpf.loader import Loaded

# The addresses that are told: those with the longest total wait.
_MOST = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What went on at one address since the recorder was armed, waits that have ended."""

    pid: int
    address: int
    waits: int
    wait_ns: int
    wakes: int
    woken: int
    # CLOCK_MONOTONIC; 0 = never.
    last_wake_ns: int
    # Threads that woke last, each once, the last one first.
    wakers: tuple[int, ...]


class Futexes:
    """The maps of one loaded ledger that are about futexes."""

    def __init__(self, loaded: Loaded) -> None:
        """Take the maps."""
        self._threads = loaded.maps["threads"]
        self._futexes = loaded.maps["futexes"]

    def switched_out(self) -> dict[int, tuple[int, int]]:
        """Thread -> when it last left its CPU by itself, CLOCK_MONOTONIC nanoseconds; it may run again.

        With the timeout of a futex wait, nanoseconds as it was given: a time, or a moment of the operation's clock; 0
        where there is none, or none is known.
        """
        found = {}
        for key, value in self._threads.items():
            off_ns, timeout_ns, _pid = layout.THREAD.unpack(value)
            if off_ns:
                found[layout.PID.unpack(key)[0]] = off_ns, timeout_ns
        return found

    def addresses(self) -> list[Address]:
        """Addresses with the longest total wait first, at most 2,000."""
        found = []
        for key, value in self._futexes.items():
            address, pid = layout.FUTEX.unpack(key)
            state = FutexState._make(layout.FUTEX_STATE.unpack_from(value))
            found.append(
                Address(
                    pid=pid,
                    address=address,
                    waits=state.waits,
                    wait_ns=state.wait_ns,
                    wakes=state.wakes,
                    woken=state.woken,
                    last_wake_ns=state.last_wake_ns,
                    wakers=_wakers(layout.WAKERS.unpack_from(value, layout.FUTEX_STATE.size), state.wakes),
                )
            )
        found.sort(key=lambda each: -each.wait_ns)
        return found[:_MOST]


def _wakers(places: tuple[int, ...], wakes: int) -> tuple[int, ...]:
    size = len(places)
    last_first = [places[(wakes - 1 - i) % size] for i in range(min(wakes, size))]
    return tuple(dict.fromkeys(each for each in last_first if each))
