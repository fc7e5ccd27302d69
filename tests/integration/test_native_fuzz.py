"""Unwinding from registers and stacks that nobody ever had: it ends, within its bounds, and harms nothing."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.host.native import libdw, look, mappings, task_iterator
from freezeframe.agentd.host.native.files import AddressSpace, Files
from freezeframe.agentd.host.native.look import Copy, Unwinding
from freezeframe.agentd.host.native.machine import X86_64
from freezeframe.agentd.host.native.symbols import SymbolCache
from freezeframe.agentd.host.native.task_iterator import Task
from freezeframe.agentd.host.target_memory import TargetMemory
from tests.support.children import child
from tests.support.compiled import c_program
from tests.support.fuzz import CASES, FUZZ, PATIENCE

FRAMES = 200

pytestmark = [pytest.mark.skipif(os.uname().machine != "x86_64", reason="registers of x86-64"), PATIENCE]


@pytest.fixture(scope="module")
def space() -> AddressSpace:
    try:
        libdw.load()
    except libdw.LibdwError as error:
        pytest.skip(str(error))
    return AddressSpace("/proc/self", Files(SymbolCache(None)), lambda _address, _size: None)


@FUZZ
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


# Where damage leads furthest: headers, unwind tables, and what is uncompressed for them.
DAMAGED = frozenset({b".eh_frame", b".eh_frame_hdr", b".debug_frame", b".debug_info", b".debug_abbrev", b".dynamic"})
COMPRESSED = ("-g", "-gz=zlib", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-fomit-frame-pointer")


def sections(data: bytes) -> list[tuple[int, int]]:
    header = struct.unpack_from("<16sHHIQQQIHHHHHH", data, 0)
    offset, count, names = header[6], header[12], header[13]
    (names_at,) = struct.unpack_from("<Q", data, offset + 64 * names + 24)
    found = [(0, 64 + 56 * header[10]), (offset, 64 * count)]
    for index in range(count):
        name, _, _, _, at, size = struct.unpack_from("<IIQQQQ", data, offset + 64 * index)
        if data[names_at + name :].split(b"\0", 1)[0] in DAMAGED:
            found.append((at, size))
    return found


def damaged(data: bytes, random: Random) -> bytes:
    changed, places = bytearray(data), [place for place in sections(data) if place[1]]
    for _ in range(random.choice([1, 2, 4, 8, 32])):
        start, size = random.choice(places)
        at = start + random.randrange(size)
        changed[at] = random.randrange(256)
    return bytes(changed)


@pytest.mark.needs("root", "bpf", "gcc")
def test_no_damaged_file_ends_the_process_that_unwinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = c_program("waits", *COMPRESSED)
    whole, opened = Path(program).read_bytes(), mappings.open_file
    file = tmp_path / "damaged"

    def open_file(directory: str, module: mappings.Module) -> int:
        own = module.name == os.fsencode(program)
        return os.open(file, os.O_RDONLY) if own else opened(directory, module)

    monkeypatch.setattr(mappings, "open_file", open_file)
    with child(program, "recurse", "mutex") as process:
        for seed in range(CASES):
            file.write_bytes(damaged(whole, Random(seed)))
            pid = os.fork()
            if not pid:
                status = 2
                try:
                    memory = TargetMemory(process.pid)
                    space = AddressSpace(f"/proc/{process.pid}", Files(SymbolCache(None)), lambda *_: None)
                    with contextlib.closing(task_iterator.load(X86_64)) as source:
                        look.stacks(process.pid, X86_64, source, space, memory, frames=FRAMES, threads=10)
                    status = 0
                except libdw.LibdwError:
                    status = 0
                finally:
                    os._exit(status)
            _, status = os.waitpid(pid, 0)
            assert status == 0, f"seed {seed}: status {status:#x}"
