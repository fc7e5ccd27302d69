"""Kinds and owners of locks from foreign memory."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.host.native import futexes
from freezeframe.agentd.host.native.futexes import Held, classify, holder_by_stack, kind_of
from freezeframe.agentd.host.native.machine import AARCH64, X86_64
from freezeframe.agentd.host.waits import Wait
from freezeframe.judge.model import Confidence
from tests.support.fuzz import FUZZ

Level = Confidence.Level
TIDS = {10, 11, 12}
AT = 0x10000


def memory(**words: bytes):
    placed = {int(name[1:], 16): data for name, data in words.items()}

    def read(address: int, size: int) -> bytes | None:
        for start, data in placed.items():
            if start <= address and address + size <= start + len(data):
                return data[address - start : address - start + size]
        return None

    return read


def mutex(word: int = 2, owner: int = 11, users: int = 1, kind: int = 0) -> bytes:
    return struct.pack("<IIiIi", word, 0, owner, users, kind) + b"\0" * 20


def wait(operation: str = "wait", flags: int = 0x80, expected: int = 2) -> Wait:
    return Wait(call="futex", operation=operation, address=AT, expected=expected, flags=flags, endless=True)


LOCK = ["__lll_lock_wait", "pthread_mutex_lock"]


@pytest.mark.parametrize(
    ("functions", "data", "expected"),
    [
        (LOCK, mutex(), Held(kind="pthread_mutex", address=AT, owner=11, confidence=Level.HIGH)),
        (LOCK, mutex(owner=99), Held(kind="pthread_mutex", address=AT, ended_owner=99)),
        (LOCK, mutex(owner=0), Held(kind="pthread_mutex", address=AT)),
        ([], mutex(), Held(kind="pthread_mutex", address=AT, owner=11, confidence=Level.MEDIUM)),
        ([], mutex(owner=99), Held(kind="futex", address=AT)),
        ([], mutex(users=0), Held(kind="futex", address=AT)),
        ([], mutex(kind=9), Held(kind="futex", address=AT)),
        ([], b"", Held(kind="futex", address=AT)),
    ],
)
def test_a_mutex(functions: list[str], data: bytes, expected: Held) -> None:
    assert classify(functions, wait(), memory(a10000=data), TIDS, X86_64) == expected


def test_a_priority_inheriting_and_a_robust_mutex() -> None:
    word = struct.pack("<I", 0x8000_000B) + b"\0" * 36
    held = classify([], wait("lock_pi"), memory(a10000=word), TIDS, X86_64)
    assert (held.kind, held.owner, held.confidence) == ("pthread_mutex", 11, Level.HIGH)
    robust = mutex(word=0x8000_000C, owner=12, kind=0x10)
    assert classify(LOCK, wait(), memory(a10000=robust), TIDS, X86_64).owner == 12


def test_a_read_write_lock() -> None:
    data = struct.pack("<8I", 8, 0, 2, 0, 0, 0, 12, 0)
    held = classify(["__pthread_rwlock_rdlock_full64"], wait(), memory(afff8=data), TIDS, X86_64)
    assert (held.kind, held.address, held.owner) == ("rwlock", AT - 8, 12)


def pthread(address: int, tid: int) -> bytes:
    return b"\0" * 16 + struct.pack("<Q", address) + b"\0" * 696 + struct.pack("<I", tid) + b"\0" * 28


def test_the_interpreter_lock() -> None:
    state, thread = 0x20000, 0x30000
    gil = struct.pack("<QQIIQ", 5000, state, 1, 0, 77) + b"\0" * 48
    read = memory(
        a10000=gil, a20000=struct.pack("<20Q", *([0] * 18), thread, 12) + b"\0" * 400, a30000=pthread(thread, 12)
    )
    for word in (40, 44):
        where = Wait(call="futex", operation="wait", address=AT + 32 + word, flags=0x189)
        held = classify(["futex_wait", "pthread_cond_timedwait", "take_gil"], where, read, TIDS, X86_64)
        assert held == Held(kind="gil", address=AT, owner=12, confidence=Level.HIGH)
        # Without Python's names a condition variable is not taken for it unless all fits.
        assert classify(["pthread_cond_timedwait"], where, read, TIDS, X86_64).kind == "gil"
        assert classify(["pthread_cond_timedwait"], where, read, {10}, X86_64).kind == "condvar"


def test_the_lock_of_a_file() -> None:
    read = memory(a10000=struct.pack("<IIQ", 2, 1, 0x30000) + b"\0" * 8, a30000=pthread(0x30000, 10))
    held = classify(["__lll_lock_wait_private", "_IO_puts"], wait(), read, TIDS, X86_64)
    assert (held.kind, held.owner) == ("stdio_lock", 10)


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        ("std::sys::sync::mutex::futex::Mutex::lock_contended", "rust_mutex"),
        ("std::sys::sync::rwlock::futex::RwLock::read_contended", "rust_rwlock"),
        ("std::sys::sync::condvar::futex::Condvar::wait", "rust_condvar"),
        ("std::thread::park", "rust_park"),
        ("parking_lot::raw_mutex::RawMutex::lock_slow", "parking_lot_mutex"),
        ("tokio::runtime::scheduler::multi_thread::park::Inner::park_condvar", "tokio_park"),
        ("parking_lot::condvar::Condvar::wait_until_internal", "parking_lot_condvar"),
        ("__pthread_clockjoin_ex", "join"),
        ("pthread_cond_wait", "condvar"),
        ("sem_wait", "semaphore"),
        ("PyThread_acquire_lock_timed", "python_lock"),
        ("my_own_function", ""),
    ],
)
def test_kinds_by_function(function: str, kind: str) -> None:
    assert kind_of(["syscall", function, "main"]) == kind


def test_what_is_built_on_others_counts() -> None:
    tokio = ["syscall", "parking_lot::condvar::Condvar::wait", "tokio::runtime::park::Inner::park"]
    assert kind_of(tokio) == "tokio_park"
    assert kind_of(["futex_wait", "pthread_cond_timedwait", "take_gil"]) == "gil"
    # Something else that it holds up further out does not.
    once = ["__lll_lock_wait", "pthread_mutex_lock", "initialise", "pthread_once"]
    assert kind_of(once) == "pthread_mutex"
    parking = "tokio::runtime::scheduler::multi_thread::park::Parker::park"
    assert kind_of(["syscall", "std::sys::sync::mutex::futex::Mutex::lock_contended", parking]) == "rust_mutex"
    assert kind_of(["pthread_cond_wait", "a", "b", "c", "d", "PyEval_RestoreThread"]) == "condvar"


def test_a_holder_by_its_stack() -> None:
    held = Held(kind="rust_mutex", address=0x5000)
    word, other = (0x5000).to_bytes(8, "little"), b"\xff" * 8
    guard, reference = word + b"\0" * 8, word + other
    assert holder_by_stack(held, {1: guard, 2: other, 3: word}, {}, {3}) == (1, True)
    assert holder_by_stack(held, {1: reference, 2: other}, {}, set()) == (1, False)
    assert holder_by_stack(held, {1: guard, 2: guard}, {}, set()) is None
    assert holder_by_stack(held, {1: other, 2: other}, {2: (0x5000, None)}, set()) == (2, False)
    assert holder_by_stack(held, {1: b"\0" + word + b"\0" * 7}, {}, set()) is None
    shared = Held(kind="rust_rwlock", address=0x5000)
    assert holder_by_stack(shared, {1: (0x5010).to_bytes(8, "little") + reference}, {}, set()) == (1, True)


def test_where_an_address_occurs() -> None:
    read = memory(a10000=b"\0" * 8 + (0x5000).to_bytes(8, "little") + b"\0" * 16)
    assert futexes.occurs(0x5000, [(AT, AT + 32)], read)
    assert futexes.occurs(0x6000, [(AT, AT + 32)], read) is False
    assert futexes.occurs(0x5000, [(0x90000, 0x90020)], read) is None


@FUZZ
@given(
    st.sampled_from([[], LOCK, ["take_gil"], ["pthread_rwlock_wrlock"], ["parking_lot::raw_mutex::RawMutex::lock_slow"],
                     ["pthread_join"]]),
    st.sampled_from(["wait", "lock_pi", ""]),
    st.binary(max_size=64),
    st.sampled_from([X86_64, AARCH64]),
)  # fmt: skip
def test_no_memory_breaks_it_or_makes_an_owner_of_a_thread_that_is_none(functions, operation, data, machine) -> None:
    def read(_: int, size: int) -> bytes | None:
        return (data * (size // max(1, len(data)) + 1))[:size] if data else None

    held = classify(functions, wait(operation), read, TIDS, machine)
    assert held.owner is None or held.owner in TIDS or held.shared
