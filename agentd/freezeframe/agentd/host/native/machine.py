"""Registers by architecture: where the kernel keeps them (struct pt_regs) and how DWARF numbers them.

x86_64 is measured on hardware. aarch64 is written from the kernel's asm/ptrace.h and the AArch64 DWARF ABI and tested
on recorded data only.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

# None = not known.
Registers = tuple["int | None", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One architecture."""

    # As uname names it.
    name: str
    # e_machine of its ELF files.
    elf_machine: int
    # Number of bpf(2).
    bpf_call: int
    # Words of pt_regs that are read, by position in it; the order of a record.
    words: tuple[int, ...]
    # Position in a record of each DWARF register, from 0 up.
    dwarf: tuple[int, ...]
    # Positions in a record.
    stack_pointer: int
    program_counter: int
    # Positions in a record of the number of the system call that a thread is in and its six arguments; empty where
    # these are not among the registers.
    call: tuple[int, ...]
    # Bytes below the stack pointer that a function may use.
    red_zone: int
    # Number of each register of a record as perf_event_open counts them; None = it has none.
    perf: tuple[int | None, ...]
    # Number of perf_event_open(2).
    perf_call: int
    # Tried on real hardware.
    tested: bool

    def to_dwarf(self, record: Registers) -> Registers:
        """Registers of a record in DWARF order."""
        return tuple(record[at] for at in self.dwarf)

    def only(self, stack_pointer: int, program_counter: int) -> Registers:
        """A record of which only these two are known."""
        known: list[int | None] = [None] * len(self.words)
        known[self.stack_pointer] = stack_pointer
        known[self.program_counter] = program_counter
        return tuple(known)


# struct pt_regs, x86_64: r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs flags rsp ss.
# cs, flags and ss are left out: nothing needs them, and they are unions since 6.9.
_X86_64_WORDS = (*range(17), 19)
_X86_64_NAMES = tuple("r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip rsp".split())  # noqa: SIM905
_X86_64_DWARF = tuple("rax rdx rcx rbx rsi rdi rbp rsp r8 r9 r10 r11 r12 r13 r14 r15 rip".split())  # noqa: SIM905

X86_64 = Machine(
    name="x86_64",
    elf_machine=62,
    bpf_call=321,
    words=_X86_64_WORDS,
    dwarf=tuple(_X86_64_NAMES.index(name) for name in _X86_64_DWARF),
    stack_pointer=_X86_64_NAMES.index("rsp"),
    program_counter=_X86_64_NAMES.index("rip"),
    call=tuple(_X86_64_NAMES.index(name) for name in ("orig_rax", "rdi", "rsi", "rdx", "r10", "r8", "r9")),
    red_zone=128,
    # arch/x86/include/uapi/asm/perf_regs.h, in the order of the names above.
    perf=(23, 22, 21, 20, 6, 1, 19, 18, 17, 16, 0, 2, 3, 4, 5, None, 8, 7),
    perf_call=298,
    tested=True,
)

# struct pt_regs, aarch64: x0 to x30, sp, pc, pstate. DWARF 0 to 30 are x0 to x30, 31 is sp; pc has no number of use.
AARCH64 = Machine(
    name="aarch64",
    elf_machine=183,
    bpf_call=280,
    words=tuple(range(33)),
    dwarf=tuple(range(32)),
    stack_pointer=31,
    program_counter=32,
    # x0 is overwritten by the result, its copy is no word of user_pt_regs.
    call=(),
    red_zone=0,
    perf=tuple(range(33)),
    perf_call=241,
    tested=False,
)

MACHINES: MappingProxyType[str, Machine] = MappingProxyType({each.name: each for each in (X86_64, AARCH64)})
