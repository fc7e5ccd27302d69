"""What a thread waits in, by its system call."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.host import Clock, waits
from freezeframe.agentd.host.procfs import Syscall
from freezeframe.agentd.host.syscalls import SYSCALL_NAMES
from tests.support.fuzz import FUZZ

CLOCK = Clock(monotonic=lambda: 1000.0, wall=lambda: 50_000.0)
MEMORY = {
    0x1000: struct.pack("<qq", 2, 500_000_000),
    0x1100: struct.pack("<qq", 1003, 0),
    0x1200: struct.pack("<qq", 50_001, 0),
    0x1300: struct.pack("<qq", 2, 500_000),
    0x1400: struct.pack("<qq", -5, 0),
    0x2000: struct.pack("<ihh", 3, 1, 0) + struct.pack("<ihh", -1, 1, 0),
}


def read(address: int, size: int) -> bytes | None:
    data = MEMORY.get(address)
    return None if data is None else data[:size]


def decoded(name: str, *arguments: int) -> waits.Wait | None:
    six = (*arguments, *([0] * (6 - len(arguments))))
    call = Syscall(name=name, number=1, arguments=tuple(f"{each & (1 << 64) - 1:#x}" for each in six))
    return waits.decode(call, "/nonexistent", read, CLOCK)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (("futex", 0x7F00, 0x80, 2, 0), "futex wait at 0x7f00, no timeout"),
        (("futex", 0x7F00, 0x80, 2, 0x1000), "futex wait at 0x7f00, timeout 2.5 s"),
        (("futex", 0x7F00, 0x89, 2, 0x1100), "futex wait at 0x7f00, 3.0 s left"),
        (("futex", 0x7F00, 0x189, 2, 0x1200), "futex wait at 0x7f00, 1.0 s left"),
        (("futex", 0x7F00, 0x86, 0, 0), "futex lock_pi at 0x7f00, no timeout"),
        (("futex", 0x7F00, 0x81, 1, 0), "futex at 0x7f00"),
        (("epoll_wait", 5, 0x9000, 10, -1), "epoll_wait fd 5, no timeout"),
        (("epoll_wait", 5, 0x9000, 10, 966), "epoll_wait fd 5, timeout 966 ms"),
        (("read", 3, 0x9000, 1), "read fd 3"),
        (("poll", 0x2000, 2, -1), "poll fd 3, no timeout"),
        (("ppoll", 0x2000, 2, 0), "ppoll fd 3, no timeout"),
        (("ppoll", 0x2000, 2, 0x1000), "ppoll fd 3, timeout 2.5 s"),
        (("select", 4, 0, 0, 0, 0x1300), "select, timeout 2.5 s"),
        (("clock_nanosleep", 1, 1, 0x1100), "clock_nanosleep, 3.0 s left"),
        (("clock_nanosleep", 0, 1, 0x1200), "clock_nanosleep, 1.0 s left"),
        (("clock_nanosleep", 0, 0, 0x1000), "clock_nanosleep, timeout 2.5 s"),
        (("nanosleep", 0x1400), "nanosleep"),
        (("wait4", -1), "wait4 any child"),
        (("wait4", 812), "wait4 child 812"),
        (("waitid", 1, 812), "waitid child 812"),
        (("fcntl", 4, 7, 0x9000), "fcntl F_SETLKW fd 4"),
        (("pause",), "pause"),
    ],
)
def test_said(call: tuple[str, int], expected: str) -> None:
    found = decoded(*call)
    assert found is not None
    assert found.text() == expected


def test_endless_only_when_that_is_sure() -> None:
    assert decoded("futex", 0x7F00, 0x80, 2, 0).endless
    assert decoded("read", 3, 0x9000, 1).endless
    assert decoded("wait4", -1).endless
    assert not decoded("futex", 0x7F00, 0x80, 2, 0x9999).endless
    assert not decoded("futex", 0x7F00, 0x81, 1, 0).endless
    assert not decoded("poll", 0x2000, 1, 5).endless
    assert not decoded("nanosleep", 0x1000).endless
    assert not decoded("restart_syscall").endless


def test_a_running_thread_waits_in_nothing() -> None:
    running = Syscall(name="running", number=-1, arguments=())
    assert waits.decode(running, "/nonexistent", read, CLOCK) is None


@FUZZ
@given(
    st.sampled_from(sorted(set(SYSCALL_NAMES["x86_64"].values()))),
    st.lists(st.integers(0, (1 << 64) - 1), min_size=6, max_size=6),
    st.one_of(st.none(), st.binary(max_size=64)),
)
def test_no_call_breaks_it(name: str, arguments: list[int], memory: bytes | None) -> None:
    call = Syscall(name=name, number=1, arguments=tuple(f"{each:#x}" for each in arguments))
    found = waits.decode(call, "/nonexistent", lambda _, size: None if memory is None else memory[:size], CLOCK)
    assert found is not None
    assert found.text().isprintable()
