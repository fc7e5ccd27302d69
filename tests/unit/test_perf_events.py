"""Samples as the kernel writes them into a ring, made by hand."""

from __future__ import annotations

import contextlib
import mmap
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.host.native.machine import AARCH64, X86_64, Machine
from freezeframe.agentd.host.native.perf_events import Sampler
from tests.support.fuzz import FUZZ

PAGE, PAGES = 4096, 16
SAMPLE, LOST = 9, 2


def ring_of(*records: bytes, start: int = 0) -> mmap.mmap:
    ring = mmap.mmap(-1, (1 + PAGES) * PAGE)
    at = start
    for record in records:
        for byte in record:
            ring[PAGE + at % (PAGES * PAGE)] = byte
            at += 1
    struct.pack_into("<QQ", ring, 1024, at, start)
    return ring


def record(kind: int, body: bytes) -> bytes:
    return struct.pack("<IHH", kind, 0, 8 + len(body)) + body


def sample(registers: int, *, stack: bytes = b"", room: int = 64, abi: int = 2) -> bytes:
    values = struct.pack(f"<{registers}Q", *range(100, 100 + registers)) if abi else b""
    user = struct.pack("<Q", room) + stack.ljust(room, b"\0") + struct.pack("<Q", len(stack))
    return record(SAMPLE, struct.pack("<IIQQ", 7, 8, 123, abi) + values + user)


def drained(machine: Machine, ring: mmap.mmap) -> tuple[Sampler, list[object]]:
    sampler = Sampler(machine, hz=49, stack_bytes=64)
    return sampler, sampler._drain(8, ring)


def test_registers_are_put_in_the_order_of_a_record() -> None:
    _, (found,) = drained(X86_64, ring_of(sample(17, stack=b"abcdefgh")))
    # The kernel's order: ax bx cx dx si di bp sp ip r8 to r15.
    told = dict(
        zip(
            [
                "ax",
                "bx",
                "cx",
                "dx",
                "si",
                "di",
                "bp",
                "sp",
                "ip",
                "r8",
                "r9",
                "r10",
                "r11",
                "r12",
                "r13",
                "r14",
                "r15",
            ],
            range(100, 117),
            strict=True,
        )
    )
    names = [
        "r15",
        "r14",
        "r13",
        "r12",
        "bp",
        "bx",
        "r11",
        "r10",
        "r9",
        "r8",
        "ax",
        "cx",
        "dx",
        "si",
        "di",
        "none",
        "ip",
        "sp",
    ]
    assert found.registers == tuple(told.get(name, 2**64 - 1) for name in names)
    assert (found.tid, found.stack) == (8, b"abcdefgh")
    assert found.registers[X86_64.program_counter] == told["ip"]
    assert found.registers[X86_64.stack_pointer] == told["sp"]
    dwarf = ["ax", "dx", "cx", "bx", "si", "di", "bp", "sp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "ip"]
    assert X86_64.to_dwarf(found.registers) == tuple(told[name] for name in dwarf)


def test_aarch64_has_them_in_its_own_order() -> None:
    _, (found,) = drained(AARCH64, ring_of(sample(33)))
    assert found.registers == tuple(range(100, 133))


@pytest.mark.parametrize("start", [0, 8, PAGES * PAGE - 8, PAGES * PAGE - 104, 7 * PAGES * PAGE - 16])
def test_a_ring_is_read_round_its_end_and_given_back(start: int) -> None:
    ring = ring_of(
        sample(17, stack=b"one"), record(LOST, struct.pack("<QQ", 1, 5)), sample(17, stack=b"two"), start=start
    )
    sampler, found = drained(X86_64, ring)
    assert [each.stack for each in found] == [b"one", b"two"]
    assert sampler.lost == {8: 5}
    head, tail = struct.unpack_from("<QQ", ring, 1024)
    assert head == tail
    assert sampler._drain(8, ring) == []


def test_a_sample_of_no_user_code_and_one_without_stack() -> None:
    _, found = drained(X86_64, ring_of(sample(17, abi=0), record(1, b"\0" * 16), sample(17, room=8)))
    assert [each.stack for each in found] == [b""]


@FUZZ
@given(st.binary(max_size=400))
def test_what_no_kernel_writes_ends_without_a_crash(data: bytes) -> None:
    sampler = Sampler(X86_64, hz=49, stack_bytes=64)
    with contextlib.suppress(struct.error):
        sampler._drain(8, ring_of(data))
