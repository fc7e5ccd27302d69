"""Futex waits of watched processes: those in progress, and what went on at each address."""

from __future__ import annotations

from dataclasses import dataclass

from freezeframe.agentd.bpf import layout
from freezeframe.agentd.bpf.layout import FutexState, FutexWait
from freezeframe.agentd.bpf.loader import Loaded

_OPERATIONS = {0: "wait", 6: "lock_pi", 9: "wait_bitset", 11: "wait_requeue_pi", 13: "lock_pi2"}
_NO_TIMEOUT, _SOME_TIMEOUT = 0, 1
# The addresses that are told: those with the longest total wait.
_MOST = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One thread that waits now. Times are CLOCK_MONOTONIC nanoseconds."""

    pid: int
    tid: int
    address: int
    # "wait", "wait_bitset", "lock_pi" ...
    operation: str
    since_ns: int
    # How long it waits at most; -1 = for ever, -2 = that is not known.
    timeout_ns: int


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
        self._waits = loaded.maps["futex_waits"]
        self._futexes = loaded.maps["futexes"]

    def waits(self) -> list[Wait]:
        """All waits in progress."""
        found = []
        for key, value in self._waits.items():
            wait = FutexWait._make(layout.FUTEX_WAIT.unpack(value))
            limit = wait.timeout_ns
            found.append(
                Wait(
                    pid=wait.tgid,
                    tid=layout.PID.unpack(key)[0],
                    address=wait.address,
                    operation=_OPERATIONS.get(wait.operation, str(wait.operation)),
                    since_ns=wait.entered_ns,
                    timeout_ns=-1 if limit == _NO_TIMEOUT else -2 if limit == _SOME_TIMEOUT else limit - 2,
                )
            )
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
