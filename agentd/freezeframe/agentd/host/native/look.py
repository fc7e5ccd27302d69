"""One look at the native stacks of a process: registers, a copy of each stack, the proof that nothing moved, frames.

A stack is sound when its thread was on no CPU before and after its stack was copied and was not switched meanwhile:
then registers and bytes are of one moment. Threads that moved are tried again; one that never rests is told with the
place where it last entered the kernel, and a doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace

from freezeframe.agentd.host import procfs
from freezeframe.agentd.host.native.files import AddressSpace
from freezeframe.agentd.host.native.libdw import Unwinder
from freezeframe.agentd.host.native.machine import Machine, Registers
from freezeframe.agentd.host.native.seize import SeizeError
from freezeframe.agentd.host.native.task_iterator import Task, TaskIterator, moved
from freezeframe.agentd.host.target_memory import MemoryLimitError, TargetMemory
from freezeframe.judge.model import NativeFrame

# Copied of each stack, from its innermost frame up, and of all of a process's together; more is read page by page where
# a frame reaches beyond.
STACK_BYTES, _LEAST_STACK_BYTES = 64 * 1024, 8 * 1024
_ALL_STACKS_BYTES = 96 * 1024 * 1024
# Frames of one process: of 10,000 threads the innermost ones tell enough.
_ALL_FRAMES, _LEAST_FRAMES = 150_000, 16
_PAGE = 4096
# Pages read one by one per thread.
_PAGES = 256
_TRIES = 3

RUNS = "it was running: the one frame is where it last entered the kernel"
RAN = "it ran while it was looked at: the one frame is where it last entered the kernel"
FEW_REGISTERS = "only two registers are known here: frames may be missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """One thread as it was copied."""

    task: Task
    # Address of the first byte of `stack`.
    base: int
    stack: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One thread's frames."""

    tid: int
    # Innermost first.
    frames: tuple[NativeFrame, ...]
    # Program counter of each frame.
    counters: tuple[int, ...]
    # Why it may be wrong or short; empty when it is sound and whole.
    doubt: str
    # What it was unwound from; None when it was not still.
    copy: Copy | None = None


class FewRegisters:
    """Threads as /proc/PID/task/TID/syscall shows them, where there is no task iterator: two registers each."""

    def __init__(self, machine: Machine, directory: Callable[[int], str]) -> None:
        """`directory` gives the one of a process."""
        self._machine = machine
        self._directory = directory

    def read(self, pid: int) -> dict[int, Task]:
        """Threads of a process, by tid."""
        found = {}
        try:
            tids = procfs.tids(self._directory(pid))
        except procfs.ProcfsError:
            return {}
        for tid in tids:
            thread = f"{self._directory(pid)}/task/{tid}"
            try:
                call = procfs.syscall(thread, self._machine.name)
                status = procfs.status(thread)
            except procfs.ProcfsError:
                continue  # ended, or not ours to see
            found[tid] = Task(
                tid=tid,
                still=bool(call.program_counter),
                switches=status.voluntary_switches + status.involuntary_switches,
                registers=self._machine.only(call.stack_pointer, call.program_counter),
            )
        return found


def take(
    pid: int,
    machine: Machine,
    source: TaskIterator | FewRegisters,
    space: AddressSpace,
    memory: TargetMemory,
    *,
    threads: int,
) -> tuple[dict[int, Copy], dict[int, Task]]:
    """Copy the stacks of at most `threads` threads; gives those that rested and those that did not, by tid.

    Raises IteratorError, TargetMemoryError.
    """
    copies: dict[int, Copy] = {}
    restless: dict[int, Task] = {}
    wanted: frozenset[int] | None = None
    before = source.read(pid)
    for _ in range(_TRIES):
        chosen = sorted(tid for tid in before if wanted is None or tid in wanted)[:threads]
        taken = _copy([before[tid] for tid in chosen if before[tid].still], machine, space, memory)
        after = source.read(pid)
        restless = {tid: before[tid] for tid in chosen}
        for tid, copy in taken.items():
            if not moved(copy.task, after.get(tid)):
                copies[tid] = copy
                del restless[tid]
        restless = {tid: task for tid, task in restless.items() if tid in after}
        if not restless:
            break
        before, wanted = after, frozenset(restless)
    return copies, restless


def _copy(tasks: list[Task], machine: Machine, space: AddressSpace, memory: TargetMemory) -> dict[int, Copy]:
    ranges, owners = [], []
    most = max(_LEAST_STACK_BYTES, min(STACK_BYTES, _ALL_STACKS_BYTES // max(1, len(tasks))))
    for task in tasks:
        pointer = task.registers[machine.stack_pointer] or 0
        mapping = space.mapping_at(pointer)
        if mapping is None:
            continue  # mapped since: the next try may have it
        base = max(mapping.start, pointer - machine.red_zone)
        ranges.append((base, min(most, mapping.end - base)))
        owners.append(task)
    read = memory.read_many(ranges)
    return {
        task.tid: Copy(task=task, base=base, stack=data)
        for task, (base, _), data in zip(owners, ranges, read, strict=True)
        if data is not None
    }


def _seize(
    tasks: Mapping[int, Task],
    machine: Machine,
    space: AddressSpace,
    memory: TargetMemory,
    seize: Callable[[int, Machine], AbstractContextManager[Registers]],
) -> dict[int, Copy]:
    found: dict[int, Copy] = {}
    for tid, task in tasks.items():
        with suppress(SeizeError), seize(tid, machine) as registers:
            found |= _copy([replace(task, registers=registers)], machine, space, memory)
    return found


class Unwinding:
    """Turns copies of one process's threads into frames."""

    def __init__(self, machine: Machine, space: AddressSpace, memory: TargetMemory | None, *, frames: int) -> None:
        """Start libdw on the process's modules; without `memory` only what was copied is read. Raises LibdwError."""
        self._machine = machine
        self._space = space
        self._memory = memory
        self._pages: dict[int, bytes | None] = {}
        self._strayed = False
        modules = [(module.start, module.end) for module in space.modules]
        self._unwinder = Unwinder(modules, space.image, self._word, frames=frames)

    def close(self) -> None:
        """Free what libdw holds."""
        self._unwinder.close()

    def stack(self, copy: Copy) -> tuple[Stack, bool]:
        """Unwind one thread; gives whether memory beyond its copy was read, too, which must be proved still again.

        Raises TargetMemoryError.
        """
        self._pages, self._strayed = {}, False
        registers = copy.task.registers
        counter = registers[self._machine.program_counter] or 0
        unwound = self._unwinder.unwind(self._machine.to_dwarf(registers), counter, copy.base, copy.stack)
        frames = tuple(self._space.frame(counter, exact) for counter, exact in unwound.frames)
        doubt = ""
        if None in registers:
            doubt = FEW_REGISTERS
        elif unwound.cut:
            doubt = f"cut off: {unwound.cut}"
        elif any(not frame.module for frame in frames):
            doubt = "a frame lies in no file: what called it may be wrong"
        counters = tuple(counter for counter, _ in unwound.frames)
        return Stack(tid=copy.task.tid, frames=frames, counters=counters, doubt=doubt, copy=copy), self._strayed

    def _word(self, address: int) -> int | None:
        """Read a word that was not copied."""
        self._strayed = True
        if self._memory is None:
            return None
        page = address & -_PAGE
        if page not in self._pages:
            if len(self._pages) >= _PAGES:
                return None
            try:
                self._pages[page] = self._memory.read_many([(page, _PAGE)])[0]
            except MemoryLimitError:
                self._pages[page] = None  # the stack ends here
        data, inside = self._pages[page], address - page
        if data is None or inside > _PAGE - 8:
            return None
        return int.from_bytes(data[inside : inside + 8], "little")


def stacks(
    pid: int,
    machine: Machine,
    source: TaskIterator | FewRegisters,
    space: AddressSpace,
    memory: TargetMemory,
    *,
    frames: int,
    threads: int,
    seize: Callable[[int, Machine], AbstractContextManager[Registers]] | None = None,
    wanted: Callable[[Copy], bool] = lambda _copy: True,
) -> list[Stack]:
    """Look at every thread of a process once, by tid; those that run are stopped with `seize` where it is given.

    Of threads that are not `wanted` only the program counter is told.

    Raises IteratorError, LibdwError, TargetMemoryError.
    """
    copies, restless = take(pid, machine, source, space, memory, threads=threads)
    if seize is not None:
        seized = _seize(restless, machine, space, memory, seize)
        copies |= seized
        restless = {tid: task for tid, task in restless.items() if tid not in seized}
    most = max(_LEAST_FRAMES, min(frames, _ALL_FRAMES // max(1, len(copies))))
    unwinding = Unwinding(machine, space, memory, frames=most)
    found: dict[int, Stack] = {}
    strayed = []
    try:
        for tid, copy in copies.items():
            if not wanted(copy):
                counter = copy.task.registers[machine.program_counter] or 0
                found[tid] = Stack(tid=tid, frames=(), counters=(counter,), doubt="", copy=copy)
                continue
            found[tid], far = unwinding.stack(copy)
            if far:
                strayed.append(tid)
    finally:
        unwinding.close()
    if strayed:
        now = source.read(pid)
        for tid in strayed:
            if copies[tid].task.still and moved(copies[tid].task, now.get(tid)):
                found[tid] = replace(found[tid], doubt="it ran while its outer frames were read: they may be wrong")
    for tid, task in restless.items():
        found[tid] = _entered(task, machine, space)
    return [found[tid] for tid in sorted(found)]


def _entered(task: Task, machine: Machine, space: AddressSpace) -> Stack:
    counter = task.registers[machine.program_counter]
    frames = (space.frame(counter, exact=True),) if counter else ()
    return Stack(tid=task.tid, frames=frames, counters=(counter,) if counter else (), doubt=RAN if task.still else RUNS)


def bare(copies: Mapping[int, Copy], machine: Machine, space: AddressSpace, why: str) -> list[Stack]:
    """The innermost frame of each thread: all that there is without an unwinder."""
    found = []
    for tid in sorted(copies):
        registers: Registers = copies[tid].task.registers
        counter = registers[machine.program_counter] or 0
        frame = space.frame(counter, exact=True)
        found.append(Stack(tid=tid, frames=(frame,), counters=(counter,), doubt=why, copy=copies[tid]))
    return found
