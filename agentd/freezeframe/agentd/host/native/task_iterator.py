"""Registers of every thread of a process, with no stop: a BPF iterator over tasks, by bare bpf(2).

A thread that is not on a CPU has its user registers on its kernel stack, whatever its state: asleep, uninterruptible,
stopped, traced or waiting for a CPU. Kernel 5.15 (bpf_task_pt_regs); before 6.1 the kernel walks all tasks of the host,
and what is not of the process is dropped here. Needs BTF, CAP_BPF and CAP_PERFMON. Nothing stays behind: program, link
and iterator are descriptors of this process.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass

from freezeframe.agentd.host import namespaces
from freezeframe.agentd.host.native import btf
from freezeframe.agentd.host.native.machine import Machine

_PROG_LOAD, _LINK_CREATE, _ITER_CREATE = 5, 28, 33
_TRACING, _TRACE_ITER = 26, 28
_SEQ_WRITE, _TASK_PT_REGS = 127, 175
_ATTRIBUTE_BYTES = 144
_READ_BYTES = 1 << 18
# pid, tgid, state, on_cpu, nvcsw, nivcsw.
_HEAD = 6
_LOAD_64, _LOAD_32, _STORE_64, _MOVE, _MOVE_NUMBER, _ADD_NUMBER = 0x79, 0x61, 0x7B, 0xBF, 0xB7, 0x07
_CALL, _EXIT, _JUMP_IF_EQUAL = 0x85, 0x95, 0x15
_CONTEXT, _TASK, _REGISTERS, _STACK = 6, 7, 8, 10


class IteratorError(Exception):
    """There is no task iterator here; `hint` says what mends it."""

    def __init__(self, detail: str, hint: str) -> None:
        """Keep the sentence and the next step."""
        super().__init__(detail)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One thread as the iterator met it."""

    tid: int
    # Not on a CPU: its registers are those it will go on with.
    still: bool
    # Voluntary and involuntary switches: unchanged means that it did not run.
    switches: int
    # As `Machine.words` orders them; None = not known.
    registers: tuple[int | None, ...]


class TaskIterator:
    """A loaded program; `read` walks one process."""

    def __init__(self, machine: Machine, facts: btf.TaskFacts) -> None:
        """Load it, 2 ms. Raises IteratorError."""
        self._machine = machine
        self._record = struct.Struct(f"<{_HEAD + len(machine.words)}Q")
        self._on_cpu_known = "on_cpu" in facts.offsets
        self._program = self._load(facts)

    def close(self) -> None:
        """Unload the program."""
        os.close(self._program)

    def read(self, pid: int) -> dict[int, Task]:
        """Threads of a process, by tid; none when it has ended. 0.1 ms, and 2 microseconds per thread.

        Raises IteratorError.
        """
        # union bpf_iter_link_info: task {tid, pid, pid_fd}; older kernels ignore it.
        info = ctypes.create_string_buffer(struct.pack("<IIII", 0, pid, 0, 0))
        request = struct.pack("<IIIIQII", self._program, 0, _TRACE_ITER, 0, ctypes.addressof(info), 16, 0)
        try:
            link = self._call(_LINK_CREATE, request)
        except OSError as error:
            if error.errno == errno.ESRCH:
                return {}
            raise IteratorError(f"attaching a task iterator: {error.strerror}", "see dmesg") from error
        try:
            iterator = self._call(_ITER_CREATE, struct.pack("<II", link, 0))
            try:
                data = b"".join(iter(lambda: os.read(iterator, _READ_BYTES), b""))
            finally:
                os.close(iterator)
        except OSError as error:
            raise IteratorError(f"reading a task iterator: {error.strerror}", "see dmesg") from error
        finally:
            os.close(link)
        return self.parse(data, pid)

    def parse(self, data: bytes, pid: int) -> dict[int, Task]:
        """Records as the program writes them, those of `pid` only."""
        whole = len(data) - len(data) % self._record.size
        found = {}
        for tid, tgid, state, on_cpu, voluntary, involuntary, *registers in self._record.iter_unpack(data[:whole]):
            if tgid == pid:
                still = not on_cpu if self._on_cpu_known else state != 0
                found[tid] = Task(tid=tid, still=still, switches=voluntary + involuntary, registers=tuple(registers))
        return found

    def _call(self, command: int, attribute: bytes) -> int:
        return bpf(self._machine.bpf_call, command, attribute)

    def _load(self, facts: btf.TaskFacts) -> int:
        code = assemble(self._machine, facts)
        program = ctypes.create_string_buffer(code)
        licence = ctypes.create_string_buffer(b"GPL")
        log = ctypes.create_string_buffer(1 << 16)
        attribute = struct.pack(
            "<IIQQIIQII16sIIIIQIIQII", _TRACING, len(code) // 8, ctypes.addressof(program), ctypes.addressof(licence),
            1, len(log), ctypes.addressof(log), 0, 0, b"ff_task_stacks", 0, _TRACE_ITER, 0, 0, 0, 0, 0, 0, 0,
            facts.function,
        )  # fmt: skip
        try:
            return self._call(_PROG_LOAD, attribute)
        except OSError as error:
            said = log.value.decode("ascii", "replace").strip().splitlines()
            detail = f"loading a task iterator: {error.strerror}" + (f" ({said[-1][:200]})" if said else "")
            if error.errno in {errno.EPERM, errno.EACCES} and not said:
                raise IteratorError(detail, "run the agent as root, or grant CAP_BPF and CAP_PERFMON") from error
            raise IteratorError(detail, "stacks without a stop need a kernel from 5.15 on") from error


def assemble(machine: Machine, facts: btf.TaskFacts) -> bytes:
    """The program: for each task, write its head and registers as one record of 64-bit words."""
    size = 8 * (_HEAD + len(machine.words))
    code: list[bytes] = []

    def put(operation: int, to: int = 0, source: int = 0, offset: int = 0, number: int = 0) -> None:
        code.append(struct.pack("<BBhi", operation, to | source << 4, offset, number))

    put(_MOVE, _CONTEXT, 1)
    put(_LOAD_64, _TASK, _CONTEXT, 8)
    no_task = len(code)
    put(_JUMP_IF_EQUAL, _TASK)
    state = "__state" if "__state" in facts.offsets else "state"
    wide = ("nvcsw", "nivcsw")
    for index, field in enumerate(("pid", "tgid", state, "on_cpu", *wide)):
        if field in facts.offsets:
            put(_LOAD_64 if field in wide else _LOAD_32, 1, _TASK, facts.offsets[field])
        else:
            put(_MOVE_NUMBER, 1)
        put(_STORE_64, _STACK, 1, 8 * index - size)
    put(_MOVE, 1, _TASK)
    put(_CALL, number=_TASK_PT_REGS)
    put(_MOVE, _REGISTERS, 0)
    for index, word in enumerate(machine.words, _HEAD):
        put(_LOAD_64, 1, _REGISTERS, 8 * word)
        put(_STORE_64, _STACK, 1, 8 * index - size)
    # context->meta->seq
    put(_LOAD_64, 1, _CONTEXT, 0)
    put(_LOAD_64, 1, 1, 0)
    put(_MOVE, 2, _STACK)
    put(_ADD_NUMBER, 2, number=-size)
    put(_MOVE_NUMBER, 3, number=size)
    put(_CALL, number=_SEQ_WRITE)
    code[no_task] = struct.pack("<BBhi", _JUMP_IF_EQUAL, _TASK, len(code) - no_task - 1, 0)
    put(_MOVE_NUMBER, 0)
    put(_EXIT)
    return b"".join(code)


def bpf(call: int, command: int, attribute: bytes) -> int:
    """Make the system call of that number and give the descriptor. Raises OSError."""
    buffer = ctypes.create_string_buffer(attribute, max(len(attribute), _ATTRIBUTE_BYTES))
    result: int = _libc().syscall(call, command, buffer, len(buffer))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@functools.cache
def kernel_facts() -> btf.TaskFacts:
    """The running kernel's, read once per process. Raises BtfError."""
    return btf.read()


def load(machine: Machine, facts: Callable[[], btf.TaskFacts] = kernel_facts) -> TaskIterator:
    """Load the program for the running kernel. Raises IteratorError."""
    if not namespaces.sees_host_pids():
        raise IteratorError(namespaces.OTHER_PIDS, namespaces.HOST_PIDS_HINT)
    try:
        return TaskIterator(machine, facts())
    except btf.BtfError as error:
        raise IteratorError(str(error), "boot a kernel of the distribution (CONFIG_DEBUG_INFO_BTF)") from error


def moved(before: Task, after: Task | None) -> bool:
    """Whether a thread ran between two reads, so that what was copied meanwhile may be torn."""
    return after is None or not after.still or before.switches != after.switches
