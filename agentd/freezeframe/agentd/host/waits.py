"""What a thread waits in: its system call with descriptors named, addresses and timeouts read.

The arguments come from /proc/PID/task/TID/syscall; what they point to is read from the target's memory by the function
given, so with it this is for workers only.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from freezeframe.agentd.host import Clock
from freezeframe.agentd.host.procfs import Syscall
from freezeframe.agentd.host.text import escape

# Bytes at an address, or None.
Read = Callable[[int, int], "bytes | None"]

_TARGET_CHARACTERS = 256
# Descriptors of one poll that are named.
_POLLED = 8
_POLLFD = struct.Struct("<ihh")
_TIME = struct.Struct("<qq")

_FUTEX_COMMANDS = {0: "wait", 6: "lock_pi", 9: "wait", 11: "wait_requeue_pi", 13: "lock_pi"}
_FUTEX_COMMAND, _FUTEX_REALTIME = 0x7F, 0x100
_FUTEX_WAIT = 0
_ABSOLUTE = 1
_REALTIME_CLOCK, _MONOTONIC_CLOCK = 0, 1

# Calls whose first argument is the descriptor that they wait for.
_ON_DESCRIPTOR = frozenset(
    {"read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "recvfrom", "sendto", "recvmsg",
     "sendmsg", "recvmmsg", "sendmmsg", "accept", "accept4", "connect", "flock", "fsync", "fdatasync", "ioctl", "fcntl",
     "splice", "tee", "vmsplice", "sendfile", "epoll_wait", "epoll_pwait", "epoll_pwait2", "io_uring_enter", "close",
     "getdents64", "fallocate", "ftruncate", "sync_file_range"}
)  # fmt: skip
_FCNTL_WAITS = {7: "F_SETLKW", 38: "F_OFD_SETLKW"}
# Argument with a timeout in milliseconds; with the address of a timespec; of a timeval.
_MILLISECONDS = {"epoll_wait": 3, "epoll_pwait": 3, "poll": 2}
_TIMESPEC = {"ppoll": 2, "pselect6": 4, "epoll_pwait2": 3, "nanosleep": 0, "rt_sigtimedwait": 2, "semtimedop": 3,
             "recvmmsg": 4}  # fmt: skip
_TIMEVAL = {"select": 4}
# Calls that wait for no longer than their timeout; others end when what they wait for comes, or never.
_TIMED = frozenset({*_MILLISECONDS, *_TIMESPEC, *_TIMEVAL, "futex", "futex_wait", "futex_waitv", "clock_nanosleep"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One thread's wait."""

    # System call.
    call: str
    # "wait", "lock_pi" of a futex; "F_SETLKW" of fcntl; else empty.
    operation: str = ""
    # Descriptor, and what it is: "pipe:[4711]", "socket:[4712]", a path.
    descriptor: int | None = None
    target: str = ""
    # Futex word, and the value that the thread expects there.
    address: int = 0
    expected: int = 0
    # Raw operation of a futex.
    flags: int = 0
    # Descriptors of a poll: number, what it is, events asked for.
    polled: tuple[tuple[int, str, int], ...] = ()
    # Child that is waited for; -1 any; None in other calls.
    child: int | None = None
    # As given, milliseconds; None when there is none or it is not known.
    timeout_ms: float | None = None
    # Until it ends, milliseconds; only of an absolute one.
    left_ms: float | None = None
    # Ends only when what it waits for comes: it has no timeout, known for sure.
    endless: bool = False

    def text(self) -> str:
        """Say it in one phrase."""
        words = [self.call]
        if self.operation:
            words.append(self.operation)
        if self.address:
            words.append(f"at {self.address:#x}")
        if self.descriptor is not None:
            words.append(f"fd {self.descriptor}" + (f" ({self.target})" if self.target else ""))
        if self.polled:
            words.append(", ".join(f"fd {number}" + (f" ({what})" if what else "") for number, what, _ in self.polled))
        if self.child is not None:
            words.append("any child" if self.child == -1 else f"child {self.child}")
        return " ".join(words) + self._until()

    def _until(self) -> str:
        if self.left_ms is not None:
            return f", {_duration(self.left_ms)} left"
        if self.timeout_ms is not None:
            return f", timeout {_duration(self.timeout_ms)}"
        return ", no timeout" if self.endless and self.call in _TIMED else ""


def _duration(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s" if abs(milliseconds) >= 1000 else f"{milliseconds:.0f} ms"  # noqa: PLR2004


def decode(call: Syscall, directory: str, read: Read, clock: Clock) -> Wait | None:
    """Decode the call of a thread; None when it is in none. `directory` is the one of its process. Never raises."""
    if call.number < 0 or not call.arguments:
        return None
    arguments = tuple(int(argument, 16) for argument in call.arguments)
    name = call.name
    if name in {"futex", "futex_wait", "futex_waitv"}:
        return _futex(name, arguments, read, clock)
    if name in {"wait4", "waitid"}:
        return _child(name, arguments)
    if name == "clock_nanosleep":
        timeout_ms = _timespec(read, arguments[2])
        if arguments[1] & _ABSOLUTE and timeout_ms is not None:
            left_ms = timeout_ms - _now_ms(clock, realtime=arguments[0] == _REALTIME_CLOCK)
            known = arguments[0] in {_REALTIME_CLOCK, _MONOTONIC_CLOCK}
            return Wait(call=name, left_ms=left_ms if known else None)
        return Wait(call=name, timeout_ms=timeout_ms)
    timeout_ms, endless = _timeout(name, arguments, read)
    descriptor, target = None, ""
    if name in _ON_DESCRIPTOR:
        descriptor = arguments[0] & 0xFFFFFFFF
        target = descriptor_target(directory, descriptor)
    return Wait(
        call=name,
        operation=_FCNTL_WAITS.get(arguments[1], "") if name == "fcntl" else "",
        descriptor=descriptor,
        target=target,
        polled=_polled(name, arguments, directory, read),
        timeout_ms=timeout_ms,
        endless=endless,
    )


def descriptor_target(directory: str, descriptor: int) -> str:
    """What a descriptor of a process is, as the kernel names it; empty when it cannot be told. Never blocks."""
    try:
        return escape(os.readlink(os.fsencode(f"{directory}/fd/{descriptor}")), _TARGET_CHARACTERS)
    except OSError:
        return ""


def _futex(name: str, arguments: tuple[int, ...], read: Read, clock: Clock) -> Wait:
    if name == "futex_waitv":
        # struct futex_waitv {u64 value, address; u32 flags, reserved}: the first of several.
        words = _words(read, arguments[0])
        timeout_ms = _timespec(read, arguments[3]) if arguments[3] else None
        left_ms = _left(timeout_ms, clock, realtime=arguments[4] & 0xFFFFFFFF == _REALTIME_CLOCK)
        several = arguments[1] & 0xFFFFFFFF != 1
        address = 0 if several or words is None else words[1]
        return Wait(call=name, operation="wait", address=address, left_ms=left_ms, endless=not arguments[3])
    if name == "futex_wait":
        timeout_ms = _timespec(read, arguments[4]) if arguments[4] else None
        left_ms = _left(timeout_ms, clock, realtime=arguments[5] & 0xFFFFFFFF == _REALTIME_CLOCK)
        return Wait(
            call=name, operation="wait", address=arguments[0], expected=arguments[1] & 0xFFFFFFFF, left_ms=left_ms,
            endless=not arguments[4],
        )  # fmt: skip
    flags = arguments[1] & 0xFFFFFFFF
    command = flags & _FUTEX_COMMAND
    operation = _FUTEX_COMMANDS.get(command, "")
    timeout_ms = left_ms = None
    if arguments[3] and operation:
        timeout_ms = _timespec(read, arguments[3])
        if command != _FUTEX_WAIT:
            # FUTEX_LOCK_PI counts real time whatever its flag says.
            realtime = bool(flags & _FUTEX_REALTIME) or operation == "lock_pi"
            timeout_ms, left_ms = None, _left(timeout_ms, clock, realtime=realtime)
    return Wait(
        call=name,
        operation=operation,
        address=arguments[0],
        expected=arguments[2] & 0xFFFFFFFF,
        flags=flags,
        timeout_ms=timeout_ms,
        left_ms=left_ms,
        endless=bool(operation) and not arguments[3],
    )


def _child(name: str, arguments: tuple[int, ...]) -> Wait:
    if name == "wait4":
        child = arguments[0] & 0xFFFFFFFF
        return Wait(call=name, child=-1 if child >> 31 or not child else child, endless=True)
    # P_PID is 1; P_ALL, P_PGID and P_PIDFD name no single pid.
    return Wait(call=name, child=arguments[1] & 0xFFFFFFFF if arguments[0] == 1 else -1, endless=True)


def _timeout(name: str, arguments: tuple[int, ...], read: Read) -> tuple[float | None, bool]:
    """Timeout in milliseconds, and whether there is none for sure."""
    if name in _MILLISECONDS:
        value = arguments[_MILLISECONDS[name]] & 0xFFFFFFFF
        return (None, True) if value >> 31 else (float(value), False)
    if name in _TIMESPEC or name in _TIMEVAL:
        address = arguments[(_TIMESPEC.get(name) or 0) if name in _TIMESPEC else _TIMEVAL[name]]
        if not address:
            return None, True
        per_ms = 1e6 if name in _TIMESPEC else 1e3
        return _time(read, address, per_ms), False
    return None, name in _ON_DESCRIPTOR and not name.startswith("io_uring")


def _polled(name: str, arguments: tuple[int, ...], directory: str, read: Read) -> tuple[tuple[int, str, int], ...]:
    if name not in {"poll", "ppoll"}:
        return ()
    count = min(arguments[1], _POLLED)
    data = read(arguments[0], count * _POLLFD.size) if count else None
    if data is None or len(data) != count * _POLLFD.size:
        return ()
    return tuple(
        (number, descriptor_target(directory, number), events)
        for number, events, _ in _POLLFD.iter_unpack(data)
        if number >= 0
    )


def _words(read: Read, address: int) -> tuple[int, int] | None:
    data = read(address, 16)
    return None if data is None or len(data) < 16 else struct.unpack("<QQ", data[:16])  # noqa: PLR2004


def _timespec(read: Read, address: int) -> float | None:
    return _time(read, address, 1e6)


def _time(read: Read, address: int, per_ms: float) -> float | None:
    """A timespec or timeval as milliseconds; None when it cannot be read or is none."""
    data = read(address, _TIME.size)
    if data is None or len(data) < _TIME.size:
        return None
    seconds, fraction = _TIME.unpack(data[: _TIME.size])
    if seconds < 0 or not 0 <= fraction < per_ms * 1000:
        return None
    return float(seconds * 1000.0 + fraction / per_ms)


def _left(absolute_ms: float | None, clock: Clock, *, realtime: bool) -> float | None:
    return None if absolute_ms is None else absolute_ms - _now_ms(clock, realtime=realtime)


def _now_ms(clock: Clock, *, realtime: bool) -> float:
    return (clock.wall() if realtime else clock.monotonic()) * 1000.0


def reader(read_many: Callable[[list[tuple[int, int]]], list[bytes | None]]) -> Read:
    """Read single ranges through a function that reads many; None for what cannot be read."""

    def read(address: int, size: int) -> bytes | None:
        with suppress(Exception):
            return read_many([(address, size)])[0]
        return None

    return read
