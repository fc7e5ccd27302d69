"""Readers of /proc that no stuck process can block.

Each takes the directory of a process or of one of its threads ("/proc/4711", "/proc/4711/task/4712", as `Host.proc`
gives it) and reads one file or link of it. None of them waits for the target's mmap_lock: `cmdline`, `environ`,
`maps`, `smaps*` and `mem` are never read here. (`syscall`, `stack` and `io` wait for an exec in progress, which ends.)

What can go wrong is one of three things, whatever the file:

ProcfsError
├── GoneError        the process or thread has ended, or the file does not exist on this kernel
├── DeniedError      the kernel does not let us look; `hint` says what to grant
└── UnreadableError  anything else: another errno, or content that is not what the kernel writes
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from freezeframe.agentd.host.syscalls import SYSCALL_NAMES
from freezeframe.agentd.host.text import escape

_PF_KTHREAD = 0x0020_0000
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Longer than any line of the files that are read here; a recorded tree may hold anything.
_READ_LIMIT = 64 * 1024
_CALL_NUMBERS = 4096
_NO_NAMES: MappingProxyType[int, str] = MappingProxyType({})


class ProcfsError(Exception):
    """Root of all; never raised itself."""

    def __init__(self, detail: str, hint: str = "") -> None:
        """Keep the sentence and the next step."""
        super().__init__(detail)
        self.hint = hint


class GoneError(ProcfsError):
    """The process or thread has ended: a normal result."""


class DeniedError(ProcfsError):
    """The kernel does not let us look."""


class UnreadableError(ProcfsError):
    """The file cannot be read, or holds what the kernel does not write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stat:
    """`stat` of a process (sums over its threads) or of a thread."""

    pid: int
    # The 15-byte name, escaped.
    comm: str
    # State letter: R S D T t Z X I.
    state: str
    parent_pid: int
    kernel_thread: bool
    # User and system time since start, milliseconds.
    cpu_ms: float
    thread_count: int
    # Clock ticks since boot.
    start_ticks: int
    rss_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The part of `status` that `stat` does not have."""

    # Real user id.
    uid: int
    # Pid of the tracer, 0 when none.
    tracer_pid: int
    # Pids from this /proc's namespace to the innermost one; one number when there is no inner one.
    namespace_pids: tuple[int, ...]
    voluntary_switches: int
    involuntary_switches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Syscall:
    """`syscall` of a thread."""

    # Name, or the number where the table has none; "running" when it is in none.
    name: str
    # Number; -1 in none, which for a sleeping thread means a fault.
    number: int
    # The six arguments, hexadecimal as the kernel writes them.
    arguments: tuple[str, ...]
    # User registers of a thread that sleeps; 0 when it runs.
    stack_pointer: int = 0
    program_counter: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Io:
    """`io` of a process: bytes since its start."""

    # Through system calls, sockets and pipes included.
    read_characters: int
    written_characters: int
    # From and to storage.
    read_bytes: int
    write_bytes: int


def pids(proc: str) -> list[int]:
    """List the processes under a /proc, ascending. Raises ProcfsError."""
    return _numbers(proc)


def tids(directory: str) -> list[int]:
    """List the threads of a process, ascending. Raises ProcfsError."""
    return _numbers(f"{directory}/task")


def stat(directory: str) -> Stat:
    """Read `stat`. Raises ProcfsError."""
    path = f"{directory}/stat"
    return parse_stat(_read(path), path)


def parse_stat(data: bytes, path: str = "stat") -> Stat:
    """Parse `stat`: the name may hold spaces, parentheses and newlines, so count from the last ")"."""
    head, closing, tail = data.rpartition(b")")
    pid, opening, comm = head.partition(b" (")
    fields = tail.split()
    if not closing or not opening:
        raise UnreadableError(f"reading {path}: no name in parentheses")
    try:
        return Stat(
            pid=int(pid),
            comm=escape(comm, 64),
            state=escape(fields[0][:1], 1),
            parent_pid=int(fields[1]),
            kernel_thread=bool(int(fields[6]) & _PF_KTHREAD),
            cpu_ms=(int(fields[11]) + int(fields[12])) * 1000.0 / _TICKS_PER_SECOND,
            thread_count=int(fields[17]),
            start_ticks=int(fields[19]),
            rss_bytes=int(fields[21]) * _PAGE_BYTES,
        )
    except (ValueError, IndexError) as error:
        raise UnreadableError(f"reading {path}: {error}") from error


def run_times(directory: str) -> tuple[float, float]:
    """Read `schedstat` of a thread: milliseconds on a CPU, and ready to run without one. Raises ProcfsError."""
    path = f"{directory}/schedstat"
    fields = _read(path).split()
    try:
        return int(fields[0]) / 1e6, int(fields[1]) / 1e6
    except (IndexError, ValueError) as error:
        raise UnreadableError(f"reading {path}: not of the kernel's form") from error


def status(directory: str) -> Status:
    """Read `status`. Raises ProcfsError."""
    path = f"{directory}/status"
    return parse_status(_read(path), path)


def parse_status(data: bytes, path: str = "status") -> Status:
    """Parse `status`. The kernel escapes a newline in the name, the first line, so others start where they seem to."""
    try:
        return Status(
            uid=int(_line(data, b"\nUid:\t").split()[0]),
            tracer_pid=int(_line(data, b"\nTracerPid:\t") or 0),
            namespace_pids=tuple(map(int, _line(data, b"\nNSpid:\t").split())),
            voluntary_switches=int(_line(data, b"\nvoluntary_ctxt_switches:\t") or 0),
            involuntary_switches=int(_line(data, b"\nnonvoluntary_ctxt_switches:\t") or 0),
        )
    except (ValueError, IndexError) as error:
        raise UnreadableError(f"reading {path}: {error}") from error


def _line(data: bytes, start: bytes) -> bytes:
    at = data.find(start)
    return b"" if at < 0 else data[at + len(start) :].partition(b"\n")[0]


def run_delay_ms(directory: str) -> float:
    """Read from `schedstat` for how long a thread has been ready to run and had no CPU, milliseconds.

    Raises ProcfsError, also on a kernel without it.
    """
    path = f"{directory}/schedstat"
    return parse_run_delay(_read(path), path)


def parse_run_delay(data: bytes, path: str = "schedstat") -> float:
    """Parse `schedstat`: nanoseconds on a CPU, nanoseconds ready without one, time slices."""
    try:
        return int(data.split()[1]) / 1e6
    except (ValueError, IndexError) as error:
        raise UnreadableError(f"reading {path}: {error}") from error


def wchan(directory: str) -> str:
    """Read the kernel function that a thread sleeps in; "" when it runs or the kernel hides it. Raises ProcfsError."""
    text = escape(_read(f"{directory}/wchan"), 128)
    return "" if text == "0" else text


def syscall(directory: str, machine: str) -> Syscall:
    """Read the system call that a thread is in; `machine` as uname names it. Raises ProcfsError.

    A 32-bit program's numbers are looked up in the same table and may come out under a wrong name.
    """
    path = f"{directory}/syscall"
    return parse_syscall(_read(path), machine, path)


def parse_syscall(data: bytes, machine: str, path: str = "syscall") -> Syscall:
    """Parse `syscall`: "running", "-1 SP PC", or "NUMBER A B C D E F SP PC"."""
    fields = data.split()
    if fields[:1] == [b"running"]:
        return Syscall(name="running", number=-1, arguments=())
    try:
        number = int(fields[0])
        pointer, counter = int(fields[-2], 16), int(fields[-1], 16)
        if number < 0:
            return Syscall(name="running", number=-1, arguments=(), stack_pointer=pointer, program_counter=counter)
        arguments = tuple(f"{int(field, 16):#x}" for field in fields[1:7])
    except (ValueError, IndexError) as error:
        raise UnreadableError(f"reading {path}: {error}") from error
    return Syscall(
        name=SYSCALL_NAMES.get(machine, _NO_NAMES).get(number, str(number)),
        number=number,
        arguments=arguments,
        stack_pointer=pointer,
        program_counter=counter,
    )


def syscall_of(number: int, arguments: Sequence[int], machine: str) -> Syscall:
    """The same from registers; `number` as an unsigned word, of which those that are no call are large."""
    if number >= _CALL_NUMBERS:
        return Syscall(name="running", number=-1, arguments=())
    return Syscall(
        name=SYSCALL_NAMES.get(machine, _NO_NAMES).get(number, str(number)),
        number=number,
        arguments=tuple(f"{argument:#x}" for argument in arguments),
    )


_STACK_LINE = re.compile(rb"^\[<[^>]*>\] ?([^\n]*)", re.MULTILINE)


def kernel_stack(directory: str) -> tuple[str, ...]:
    """Read the kernel stack of a thread, innermost first: "futex_wait+0x6f/0x110". Raises ProcfsError."""
    return parse_kernel_stack(_read(f"{directory}/stack"))


def parse_kernel_stack(data: bytes) -> tuple[str, ...]:
    """Parse `stack`: "[<0>] FUNCTION+OFFSET/SIZE" per line."""
    return tuple(escape(line, 256) for line in _STACK_LINE.findall(data))


def io(directory: str) -> Io:
    """Read `io`. Raises ProcfsError."""
    path = f"{directory}/io"
    values = dict(line.split(b": ", 1) for line in _read(path).splitlines() if b": " in line)
    try:
        return Io(
            read_characters=int(values[b"rchar"]),
            written_characters=int(values[b"wchar"]),
            read_bytes=int(values[b"read_bytes"]),
            write_bytes=int(values[b"write_bytes"]),
        )
    except (KeyError, ValueError) as error:
        raise UnreadableError(f"reading {path}: {error!r}") from error


def exe(directory: str) -> str:
    """Read the executable's path as the kernel names it. Raises ProcfsError; GoneError for a zombie too."""
    path = f"{directory}/exe"
    try:
        return escape(os.readlink(os.fsencode(path)))
    except OSError as error:
        raise translated(error, path) from error


def network_namespace(directory: str) -> int:
    """Read the inode of the network namespace. Raises ProcfsError."""
    path = f"{directory}/ns/net"
    try:
        link = os.readlink(path)
    except OSError as error:
        raise translated(error, path) from error
    number = link.removeprefix("net:[").removesuffix("]")
    if not number.isdecimal():
        raise UnreadableError(f"reading {path}: {escape(os.fsencode(link), 64)} names no namespace")
    return int(number)


def descriptor_count(directory: str) -> int:
    """Count the open descriptors of a process. Raises ProcfsError."""
    path = f"{directory}/fd"
    try:
        return len(os.listdir(path))
    except OSError as error:
        raise translated(error, path) from error


_OPEN_FILES = re.compile(rb"^Max open files +(\d+|unlimited) ", re.MULTILINE)


def descriptor_limit(directory: str) -> float | None:
    """Read the soft limit of open files; None for none. Raises ProcfsError."""
    path = f"{directory}/limits"
    found = _OPEN_FILES.search(_read(path))
    if found is None:
        raise UnreadableError(f"reading {path}: no line of open files")
    return None if found[1] == b"unlimited" else float(found[1])


def cgroup(directory: str) -> bytes:
    """Read `cgroup`; `host.cgroups` parses it. Raises ProcfsError."""
    return _read(f"{directory}/cgroup")


def _read(path: str) -> bytes:
    # One read: the kernel hands over each of these files in one piece.
    return read_file(path)


def read_file(path: str, limit: int = _READ_LIMIT) -> bytes:
    """Read up to `limit` bytes of a file of /proc or /sys. Raises ProcfsError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return os.read(descriptor, limit)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise translated(error, path) from error


def _numbers(path: str) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(path) if name.isdecimal())
    except OSError as error:
        raise translated(error, path) from error


def translated(error: OSError, path: str) -> ProcfsError:
    """Put an errno of /proc into our terms."""
    detail = f"reading {path}: {error.strerror}"
    if error.errno in {errno.ENOENT, errno.ESRCH, errno.ENOTDIR}:
        return GoneError(detail)
    if error.errno in {errno.EACCES, errno.EPERM}:
        return DeniedError(detail, _grant(path))
    return UnreadableError(detail)


def _grant(path: str) -> str:
    if path.endswith("/stack"):
        return "kernel stacks need CAP_SYS_ADMIN"
    return "run as root or grant CAP_SYS_PTRACE"
