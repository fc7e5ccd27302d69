from __future__ import annotations

import ctypes
import mmap
import os
import subprocess

import pytest

from freezeframe.agentd.host.target_memory import (
    MemoryGoneError,
    MemoryLimitError,
    TargetMemory,
    UnreadableMemoryError,
)

PAGE = mmap.PAGESIZE


@pytest.fixture
def block() -> tuple[int, ctypes.Array[ctypes.c_char]]:
    buffer = ctypes.create_string_buffer(bytes(range(256)) * 64)
    return ctypes.addressof(buffer), buffer


def test_many_ranges_with_one_call(block: tuple[int, ctypes.Array[ctypes.c_char]]) -> None:
    memory = TargetMemory(os.getpid())
    base, _ = block
    assert memory.read_many([(base, 2), (base + 256, 4), (base + 10, 0)]) == [b"\0\1", b"\0\1\2\3", b""]
    assert memory.calls == 1
    assert memory.bytes == 6
    assert memory.word(base) == 0x0706050403020100


def test_what_is_not_mapped_is_left_out_and_the_rest_is_read(block: tuple[int, ctypes.Array[ctypes.c_char]]) -> None:
    base, _ = block
    memory = TargetMemory(os.getpid())
    ranges = [
        (0, 8),
        (base, 1),
        (16, 8),
        (base + 1, 1),
        (1 << 63, 8),
        (-8, 8),
        (base, -1),
        (base, 1 << 40),
        (base + 2, 1),
    ]
    assert memory.read_many(ranges) == [None, b"\0", None, b"\1", None, None, None, None, b"\2"]
    with pytest.raises(UnreadableMemoryError, match="reading 8 bytes at 0x10: not mapped"):
        memory.read(16, 8)


def test_more_ranges_than_one_call_takes(block: tuple[int, ctypes.Array[ctypes.c_char]]) -> None:
    base, _ = block
    memory = TargetMemory(os.getpid())
    assert memory.read_many([(base + index % 256, 1) for index in range(5000)]) == [
        bytes([i % 256]) for i in range(5000)
    ]
    assert memory.calls == 5


def test_a_guess_beyond_the_mapping_gives_what_is_there() -> None:
    area = mmap.mmap(-1, 2 * PAGE)
    view = (ctypes.c_char * (2 * PAGE)).from_buffer(area)
    base = ctypes.addressof(view)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(base + PAGE), PAGE, 0) == 0
    try:
        memory = TargetMemory(os.getpid())
        assert memory.read_many([(base + PAGE - 8, 16)]) == [None]
        assert memory.read_up_to(base + PAGE - 8, 16) == b"\0" * 8
    finally:
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(base + PAGE), PAGE, 3)
        del view
        area.close()


def test_bytes_and_time_are_bounded(block: tuple[int, ctypes.Array[ctypes.c_char]]) -> None:
    base, _ = block
    memory = TargetMemory(os.getpid(), max_bytes=100)
    memory.read(base, 60)
    with pytest.raises(MemoryLimitError, match="more bytes"):
        memory.read(base, 60)
    with pytest.raises(MemoryLimitError, match="time"):
        TargetMemory(os.getpid(), until=1.0, monotonic=lambda: 2.0).read(base, 1)


def test_it_beats_at_most_ten_times_a_second(block: tuple[int, ctypes.Array[ctypes.c_char]]) -> None:
    base, _ = block
    now, beats = [0.0], []
    memory = TargetMemory(os.getpid(), monotonic=lambda: now[0], beat=lambda: beats.append(now[0]))
    for _ in range(40):
        memory.read(base, 1)
        now[0] += 0.03
    assert len(beats) == 10


def test_a_process_that_has_ended() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
        with pytest.raises(MemoryGoneError):
            TargetMemory(process.pid).read(4096, 1)
