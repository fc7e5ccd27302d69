"""Samples of running threads by perf_event_open(2): user registers and a copy of the stack, without a stop.

The kernel's task clock of each thread fires while that thread runs, on its own CPU, and copies its registers and the
top of its user stack into a ring of that thread; a thread that sleeps gives no sample. Needs CAP_PERFMON (or
kernel.perf_event_paranoid of 1 or less and the right to trace the target). Everything goes when its descriptor does.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import select
import struct
from dataclasses import dataclass

from freezeframe.agentd.host.native.machine import Machine, Registers

_libc = ctypes.CDLL(None, use_errno=True)
# struct perf_event_attr up to sample_max_stack (PERF_ATTR_SIZE_VER5): type, size, config, sample_freq, sample_type,
# read_format, flags, wakeup_events, bp_type, config1, config2, branch_sample_type, sample_regs_user, sample_stack_user,
# clockid, sample_regs_intr, aux_watermark, sample_max_stack and padding.
_ATTRIBUTE = struct.Struct("<IIQQQQQIIQQQQIiQIHxx")
_SOFTWARE, _TASK_CLOCK = 1, 1
_SAMPLE_TID, _SAMPLE_TIME, _SAMPLE_REGS_USER, _SAMPLE_STACK_USER = 1 << 1, 1 << 2, 1 << 12, 1 << 13
_FLAG_DISABLED, _FLAG_EXCLUDE_HV, _FLAG_FREQUENCY, _FLAG_EXCLUDE_GUEST = 1 << 0, 1 << 6, 1 << 10, 1 << 20
_FLAG_CLOSE_ON_EXEC = 8
_ENABLE = 0x2400
# struct perf_event_mmap_page.
_HEAD_AT, _TAIL_AT = 1024, 1032
_HEADER = struct.Struct("<IHH")
_RECORD_LOST, _RECORD_SAMPLE = 2, 9
_WORD = struct.Struct("<Q")
_NO_CALL = (1 << 64) - 1
_PAGE = 4096
# Pages of a ring, a power of two: three samples and more of the largest stack.
_RING_PAGES = 16


class PerfError(Exception):
    """No event could be opened; `hint` says what mends it."""

    def __init__(self, detail: str, hint: str = "") -> None:
        """Keep the sentence and the next step."""
        super().__init__(detail)
        self.hint = hint


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One thread at one moment at which it ran."""

    tid: int
    # As `Machine.words` orders them.
    registers: Registers
    # From the stack pointer up.
    stack: bytes


class Sampler:
    """Samples some threads."""

    def __init__(self, machine: Machine, *, hz: int, stack_bytes: int) -> None:
        """Watch nothing yet; `stack_bytes` is a multiple of 8 of at most 16 KiB."""
        self._machine = machine
        mask = sum(1 << number for number in machine.perf if number is not None)
        # The kernel gives them in the order of their numbers.
        order = sorted(number for number in machine.perf if number is not None)
        self._order = tuple(None if number is None else order.index(number) for number in machine.perf)
        self._registers = struct.Struct(f"<{len(order)}Q")
        self._attribute = _ATTRIBUTE.pack(
            _SOFTWARE, _ATTRIBUTE.size, _TASK_CLOCK, hz,
            _SAMPLE_TID | _SAMPLE_TIME | _SAMPLE_REGS_USER | _SAMPLE_STACK_USER,
            0, _FLAG_DISABLED | _FLAG_EXCLUDE_HV | _FLAG_FREQUENCY | _FLAG_EXCLUDE_GUEST,
            1, 0, 0, 0, 0, mask, stack_bytes, 0, 0, 0, 0,
        )  # fmt: skip
        self._rings: dict[int, tuple[int, mmap.mmap]] = {}
        self._poller = select.poll()
        # Samples that the kernel had no room for, by thread.
        self.lost: dict[int, int] = {}

    def watch(self, tid: int) -> None:
        """Sample one thread from now on. Raises ProcessLookupError when it has ended, PerfError."""
        buffer = ctypes.create_string_buffer(self._attribute, len(self._attribute))
        descriptor = _libc.syscall(self._machine.perf_call, buffer, tid, -1, -1, _FLAG_CLOSE_ON_EXEC)
        if descriptor < 0:
            number = ctypes.get_errno()
            if number == errno.ESRCH:
                raise ProcessLookupError(number, os.strerror(number))
            hint = "run the agent as root, or grant CAP_PERFMON"
            raise PerfError(
                f"opening a perf event for thread {tid}: {os.strerror(number)}",
                hint if number in {errno.EACCES, errno.EPERM} else "",
            )
        try:
            ring = mmap.mmap(descriptor, (1 + _RING_PAGES) * _PAGE)
        except OSError as error:
            os.close(descriptor)
            hint = "grant CAP_IPC_LOCK, or raise kernel.perf_event_mlock_kb"
            raise PerfError(f"mapping the samples of thread {tid}: {error.strerror}", hint) from error
        self._rings[descriptor] = (tid, ring)
        self._poller.register(descriptor, select.POLLIN)

    def start(self) -> None:
        """Let all of them count."""
        for descriptor in self._rings:
            _libc.ioctl(descriptor, _ENABLE, 0)

    def wait(self, seconds: float) -> list[Sample]:
        """Samples that have come, at the latest after so long; they are copies."""
        found: list[Sample] = []
        for descriptor, event in self._poller.poll(max(0.0, seconds) * 1000.0):
            tid, ring = self._rings[descriptor]
            found += self._drain(tid, ring)
            if event & (select.POLLHUP | select.POLLERR):
                self._poller.unregister(descriptor)  # the thread has ended
        return found

    def close(self) -> None:
        """Stop sampling."""
        for descriptor, (_, ring) in self._rings.items():
            ring.close()
            os.close(descriptor)
        self._rings.clear()

    def _drain(self, tid: int, ring: mmap.mmap) -> list[Sample]:
        found: list[Sample] = []
        (head,) = _WORD.unpack_from(ring, _HEAD_AT)
        (tail,) = _WORD.unpack_from(ring, _TAIL_AT)
        while tail < head:
            kind, _, size = _HEADER.unpack(_part(ring, tail, _HEADER.size))
            if size < _HEADER.size or tail + size > head:
                break  # never written by a kernel
            body = _part(ring, tail + _HEADER.size, size - _HEADER.size)
            if kind == _RECORD_SAMPLE:
                sample = self._sample(tid, body)
                if sample is not None:
                    found.append(sample)
            elif kind == _RECORD_LOST:
                self.lost[tid] = self.lost.get(tid, 0) + _WORD.unpack_from(body, 8)[0]
            tail += size
        _WORD.pack_into(ring, _TAIL_AT, head)
        return found

    def _sample(self, tid: int, body: bytes) -> Sample | None:
        """Parse pid and tid, time, then the registers and the stack; None for one without user registers."""
        (abi,) = _WORD.unpack_from(body, 16)
        if not abi:
            return None
        values = self._registers.unpack_from(body, 24)
        at = 24 + self._registers.size
        (size,) = _WORD.unpack_from(body, at)
        stack = b""
        if size:
            (filled,) = _WORD.unpack_from(body, at + 8 + size)
            stack = body[at + 8 : at + 8 + min(size, filled)]
        # What has no number is the system call's: it runs, so it is in none.
        registers = tuple(_NO_CALL if place is None else values[place] for place in self._order)
        return Sample(tid=tid, registers=registers, stack=stack)


def _part(ring: mmap.mmap, at: int, size: int) -> bytes:
    """Bytes of the ring, which begins behind its first page and is written round and round."""
    start = at % (_RING_PAGES * _PAGE)
    first = min(size, _RING_PAGES * _PAGE - start)
    data = ring[_PAGE + start : _PAGE + start + first]
    return data + ring[_PAGE : _PAGE + size - first] if first < size else data
