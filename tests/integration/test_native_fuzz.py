"""Unwinding from registers and stacks that nobody ever had: it ends, within its bounds, and harms nothing."""

from __future__ import annotations

import os
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freezeframe.agentd.host.native import libdw
from freezeframe.agentd.host.native.files import AddressSpace, Files
from freezeframe.agentd.host.native.look import Copy, Unwinding
from freezeframe.agentd.host.native.machine import X86_64
from freezeframe.agentd.host.native.symbols import SymbolCache
from freezeframe.agentd.host.native.task_iterator import Task
from freezeframe.agentd.host.target_memory import TargetMemory

EXAMPLES = int(os.environ.get("FREEZEFRAME_EXAMPLES", "200"))
FRAMES = 200

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="registers of x86-64")


@pytest.fixture(scope="module")
def space() -> AddressSpace:
    try:
        libdw.load()
    except libdw.LibdwError as error:
        pytest.skip(str(error))
    return AddressSpace("/proc/self", Files(SymbolCache(None)), lambda _address, _size: None)


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.data())
def test_no_stack_breaks_unwinding(space: AddressSpace, data: st.DataObject) -> None:
    code = [each for each in space.mappings if each.executable and each.inode]
    # Words that lead on: into code, into the stack itself, or nowhere.
    inside = st.sampled_from(code).flatmap(lambda each: st.integers(each.start, each.end - 1))
    base = 0x7FFE_0000_0000
    words = st.one_of(inside, st.integers(base, base + 4096), st.integers(0, (1 << 64) - 1))
    stack = struct.pack("<128Q", *data.draw(st.lists(words, min_size=128, max_size=128)))
    registers = data.draw(st.lists(words, min_size=18, max_size=18))
    registers[X86_64.stack_pointer] = base + data.draw(st.integers(0, 64)) * 8
    registers[X86_64.program_counter] = data.draw(inside)
    memory = TargetMemory(os.getpid(), max_bytes=64 * 1024 * 1024)
    unwinding = Unwinding(X86_64, space, memory, frames=FRAMES)
    try:
        task = Task(tid=1, still=True, switches=0, registers=tuple(registers))
        found, _ = unwinding.stack(Copy(task=task, base=base, stack=stack))
    finally:
        unwinding.close()
    assert 1 <= len(found.frames) <= FRAMES
    # 256 pages at most beyond the copy.
    assert memory.bytes <= 256 * 4096
    assert all(frame.function.isprintable() and len(frame.function) <= 5200 for frame in found.frames)
