"""Futex waits of this very process: its lock, its threads, exact counts."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from freezeframe.agentd.bpf import loader, programs
from freezeframe.agentd.collectors.trace_futex import TRACE_FUTEX
from freezeframe.agentd.host import Host
from freezeframe.agentd.recorder.futexes import Address, Futexes
from freezeframe.agentd.recorder.ledger import Ledger
from freezeframe.judge.model import FutexWait
from tests.support import report

pytestmark = pytest.mark.needs("kernel")

WAIT, WAKE, PRIVATE = 0, 1, 128
libc = ctypes.CDLL(None, use_errno=True)


def futex(word: ctypes.c_uint32, operation: int, value: int) -> int:
    return int(libc.syscall(202, ctypes.byref(word), operation | PRIVATE, value, None, None, 0xFFFFFFFF))


def wait_for(word: ctypes.c_uint32, operation: int, timeout_s: float | None, bits: int) -> None:
    timeout = None if timeout_s is None else (ctypes.c_long * 2)(int(timeout_s), int(timeout_s % 1 * 1e9))
    libc.syscall(202, ctypes.byref(word), operation | PRIVATE, 7, timeout, None, bits)


def collected(futexes: Futexes) -> tuple[FutexWait, ...]:
    """What the collector tells of this process, asking this recorder."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def answer() -> None:
        theirs.recv(4096)
        memory = os.memfd_create("records")
        switched_out = [(tid, *times) for tid, times in futexes.switched_out().items()]
        os.write(memory, json.dumps({"switched_out": switched_out, "addresses": []}).encode())
        state = {"now_ns": time.monotonic_ns(), "armed_ns": 0}
        socket.send_fds(theirs, [json.dumps(state).encode()], [memory])
        os.close(memory)

    with ours, theirs:
        recorder = threading.Thread(target=answer)
        recorder.start()
        kept = report.run(TRACE_FUTEX, [report.target(os.getpid())], host=Host(recorder=ours.fileno()))
        recorder.join()
    return kept.snapshot().futex_waits


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
    since = {tid: off_ns for tid, (off_ns, _) in futexes.switched_out().items()}
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


def test_how_much_of_a_timeout_is_left(futexes: Futexes) -> None:
    words = [ctypes.c_uint32(7) for _ in range(4)]
    wait_bitset, realtime, everyone = 9, 256, 0xFFFFFFFF
    # A time for one operation, a moment for the other, of either clock.
    waits = (
        (words[0], WAIT, 5.0, 0),
        (words[1], wait_bitset, time.monotonic() + 6.0, everyone),
        (words[2], wait_bitset | realtime, time.time() + 7.0, everyone),
        (words[3], WAIT, None, 0),
    )
    threads = []
    for word, operation, timeout, bits in waits:
        threads.append(threading.Thread(target=wait_for, args=(word, operation, timeout, bits), daemon=True))
        threads[-1].start()
    eventually(lambda: all(len(waiting_at(futexes, word)) == 1 for word in words))
    begin = time.monotonic()
    found = {each.address: each for each in collected(futexes)}
    told = [found[f"{ctypes.addressof(word):x}"] for word in words]
    assert [each.timed for each in told] == [True, True, True, False]
    assert told[3].timeout_left_ms is None
    # A second for the threads to begin.
    for each, whole_ms in zip(told, (5000.0, 6000.0, 7000.0), strict=False):
        assert each.timeout_left_ms is not None
        spent_ms = (time.monotonic() - begin) * 1000 + (each.since_ms or 0.0)
        assert whole_ms - spent_ms - 1000.0 < each.timeout_left_ms < whole_ms
    for word in words:
        assert futex(word, WAKE, 1) == 1
    for thread in threads:
        thread.join(10)


def test_a_wait_that_does_not_begin_is_none(futexes: Futexes) -> None:
    word = ctypes.c_uint32(7)
    assert futex(word, WAIT, 8) == -1
    assert waiting_at(futexes, word) == {}
    assert address_of(futexes, word) is None
