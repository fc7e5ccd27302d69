"""Futex waits of this very process: its lock, its threads, exact counts."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from freezeframe.agentd.bpf import loader, programs
from freezeframe.agentd.recorder.futexes import Address, Futexes
from freezeframe.agentd.recorder.ledger import Ledger

pytestmark = pytest.mark.needs("kernel")

WAIT, WAKE, PRIVATE = 0, 1, 128
libc = ctypes.CDLL(None, use_errno=True)


def futex(word: ctypes.c_uint32, operation: int, value: int) -> int:
    return int(libc.syscall(202, ctypes.byref(word), operation | PRIVATE, value, None, None, 0xFFFFFFFF))


@pytest.fixture
def futexes(private_directory: Path) -> Iterator[Futexes]:
    loaded = loader.load(programs.LEDGER, str(private_directory))
    ledger = Ledger(loaded)
    # What makes this process a watched one.
    with socket.create_server(("127.0.0.1", 0)):
        pass
    try:
        yield Futexes(loaded)
    finally:
        ledger.close()


def eventually(find: Callable[[], object]) -> None:
    give_up = time.monotonic() + 20
    while not find():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def waiting_at(futexes: Futexes, word: ctypes.c_uint32) -> dict[int, int]:
    """Thread -> since when, of those that wait at this word now."""
    address = hex(ctypes.addressof(word))
    since = futexes.switched_out()
    found = {}
    for tid in os.listdir("/proc/self/task"):
        words = Path(f"/proc/self/task/{tid}/syscall").read_text().split()
        if words[0] == "202" and words[1] == address:
            found[int(tid)] = since.get(int(tid), 0)
    return found


def address_of(futexes: Futexes, word: ctypes.c_uint32) -> Address | None:
    address = ctypes.addressof(word)
    found = [each for each in futexes.addresses() if (each.pid, each.address) == (os.getpid(), address)]
    return found[0] if found else None


def test_waits_in_progress_and_what_was_waited_and_woken(futexes: Futexes) -> None:
    word = ctypes.c_uint32(7)
    tids: list[int] = []

    def wait() -> None:
        tids.append(threading.get_native_id())
        futex(word, WAIT, 7)

    began = time.monotonic_ns()
    threads = [threading.Thread(target=wait, daemon=True) for _ in range(5)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(waiting_at(futexes, word)) == 5)
    seen = time.monotonic_ns()
    waits = waiting_at(futexes, word)
    assert set(waits) == set(tids)
    assert all(began < since < seen for since in waits.values())
    assert futex(word, WAKE, 2) == 2
    eventually(lambda: (address_of(futexes, word) or Address).waits == 2)  # type: ignore[comparison-overlap]
    assert futex(word, WAKE, 100) == 3
    for thread in threads:
        thread.join(10)
    assert futex(word, WAKE, 1) == 0
    state = address_of(futexes, word)
    assert state is not None
    assert (state.waits, state.wakes, state.woken) == (5, 2, 5)
    assert state.wakers == (threading.get_native_id(),)
    waited = time.monotonic_ns() - began
    assert 0 < state.wait_ns < 5 * waited
    assert waiting_at(futexes, word) == {}


def test_a_wait_that_does_not_begin_is_none(futexes: Futexes) -> None:
    word = ctypes.c_uint32(7)
    assert futex(word, WAIT, 8) == -1
    assert waiting_at(futexes, word) == {}
    assert address_of(futexes, word) is None
