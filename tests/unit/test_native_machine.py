"""Register tables and the iterator's program, on recorded data: the only test that aarch64 has."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from freezeframe.agentd.collectors.contract import Collector, UnavailableError
from freezeframe.agentd.collectors.snapshot_locks import SNAPSHOT_LOCKS
from freezeframe.agentd.collectors.snapshot_native_stacks import SNAPSHOT_NATIVE_STACKS
from freezeframe.agentd.host.native import btf
from freezeframe.agentd.host.native.machine import AARCH64, MACHINES, X86_64, Machine
from freezeframe.agentd.host.native.task_iterator import IteratorError, Task, TaskIterator, assemble, load, moved
from tests.support.report import run

FACTS = btf.TaskFacts(
    function=1234, offsets={"pid": 1000, "tgid": 1004, "__state": 24, "on_cpu": 52, "nvcsw": 1500, "nivcsw": 1508}
)


def test_x86_64_in_dwarf_order() -> None:
    # As the kernel has them: r15 first, then up to the program counter and the stack pointer; each its own number.
    kernel = "r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs flags rsp ss"
    kernel = kernel.split()
    record = tuple(100 + word for word in X86_64.words)
    named = dict(zip(range(17), X86_64.to_dwarf(record), strict=True))
    # System V ABI, figure 3.36.
    abi = "rax rdx rcx rbx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15 rip"
    abi = abi.split()
    assert named == {number: 100 + kernel.index(name) for number, name in enumerate(abi)}
    assert record[X86_64.stack_pointer] == 100 + kernel.index("rsp")
    assert record[X86_64.program_counter] == 100 + kernel.index("rip")


def test_aarch64_in_dwarf_order() -> None:
    # struct user_pt_regs: regs[31], sp, pc, pstate; DWARF for the Arm 64-bit Architecture: 0 to 30 and 31 = SP.
    record = tuple(200 + word for word in AARCH64.words)
    assert AARCH64.to_dwarf(record) == tuple(range(200, 232))
    assert (record[AARCH64.stack_pointer], record[AARCH64.program_counter]) == (231, 232)
    assert not AARCH64.tested


def test_two_registers_only() -> None:
    for machine in MACHINES.values():
        known = machine.only(0x7FF0, 0x4000)
        assert known[machine.stack_pointer] == 0x7FF0
        assert known[machine.program_counter] == 0x4000
        assert sum(value is not None for value in known) == 2


def instructions(code: bytes) -> list[tuple[int, int, int, int, int]]:
    return [
        (operation, registers & 15, registers >> 4, offset, number)
        for operation, registers, offset, number in struct.iter_unpack("<BBhi", code)
    ]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda machine: machine.name)
def test_the_program_of_each_machine(machine: Machine) -> None:
    program = instructions(assemble(machine, FACTS))
    size = 8 * (6 + len(machine.words))
    # Within the stack that the verifier allows.
    assert size <= 512
    loads = [offset for operation, _, source, offset, _ in program if operation == 0x79 and source == 8]
    assert loads == [8 * word for word in machine.words]
    stores = sorted(offset for operation, to, _, offset, _ in program if operation == 0x7B and to == 10)
    assert stores == list(range(-size, 0, 8))
    calls = [number for operation, _, _, _, number in program if operation == 0x85]
    assert calls == [175, 127]
    # The jump for "no task" lands on the last two instructions: return 0.
    at, offset = next((i, offset) for i, (operation, _, _, offset, _) in enumerate(program) if operation == 0x15)
    assert program[at + 1 + offset :] == [(0xB7, 0, 0, 0, 0), (0x95, 0, 0, 0, 0)]


def test_an_older_kernel_has_other_fields() -> None:
    facts = btf.TaskFacts(function=1, offsets={"pid": 8, "tgid": 12, "state": 0, "nvcsw": 16, "nivcsw": 24})
    program = instructions(assemble(X86_64, facts))
    loads = [
        (operation, offset) for operation, _, source, offset, _ in program if source == 7 and operation in (0x61, 0x79)
    ]
    assert loads == [(0x61, 8), (0x61, 12), (0x61, 0), (0x79, 16), (0x79, 24)]


def test_records_of_other_processes_and_cut_ones_are_dropped() -> None:
    iterator = TaskIterator.__new__(TaskIterator)
    iterator._machine = X86_64
    iterator._record = struct.Struct("<24Q")
    iterator._on_cpu_known = True
    registers = tuple(range(18))
    data = iterator._record.pack(12, 10, 1, 0, 3, 4, *registers) + iterator._record.pack(7, 6, 1, 0, 3, 4, *registers)
    assert iterator.parse(data + b"\0" * 50, 10) == {12: Task(tid=12, still=True, switches=7, registers=registers)}
    on_cpu = iterator._record.pack(12, 10, 0, 1, 3, 4, *registers)
    assert not iterator.parse(on_cpu, 10)[12].still
    iterator._on_cpu_known = False
    assert not iterator.parse(on_cpu, 10)[12].still


def test_moved() -> None:
    task = Task(tid=1, still=True, switches=5, registers=())
    assert not moved(task, Task(tid=1, still=True, switches=5, registers=()))
    assert moved(task, Task(tid=1, still=True, switches=6, registers=()))
    assert moved(task, Task(tid=1, still=False, switches=5, registers=()))
    assert moved(task, None)


@pytest.mark.parametrize("collector", [SNAPSHOT_NATIVE_STACKS, SNAPSHOT_LOCKS], ids=lambda each: each.name)
def test_an_unknown_architecture_is_said(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    names = os.uname()
    other = os.uname_result((names.sysname, names.nodename, names.release, names.version, "riscv64"))
    monkeypatch.setattr(os, "uname", lambda: other)
    with pytest.raises(UnavailableError, match="no register table for riscv64"):
        run(collector)


def test_the_program_of_this_kernel_loads_only_with_its_type_information(tmp_path: Path) -> None:
    with pytest.raises(IteratorError) as caught:
        load(X86_64, lambda: btf.read(str(tmp_path / "vmlinux")))
    assert "No such file" in str(caught.value)
    assert "CONFIG_DEBUG_INFO_BTF" in caught.value.hint
