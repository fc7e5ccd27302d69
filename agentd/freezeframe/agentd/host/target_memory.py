"""Reading the memory of a live process through process_vm_readv: no attach, no stop, every read bounded.

The process goes on running, so what is read may be of several moments: whoever reads must check. A read waits while the
target's memory lock is held, beyond any deadline: only an expendable worker may call it, after `host.memory.stall_of`.

TargetMemoryError
├── UnreadableMemoryError  nothing is mapped there, or what is there is not what was looked for: the target moved on
├── MemoryLimitError       the reader's own bound is reached
├── MemoryGoneError        the process has ended
└── MemoryDeniedError      the kernel does not let us look
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import time
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import accumulate, chain

# Ranges of one call: IOV_MAX.
_RANGES = 1024
# Bytes of one call.
_CALL_BYTES = 4 * 1024 * 1024
_PAGE = 4096
_BEAT_S = 0.1
# Larger ranges are not kept.
_PAGED_BYTES = 64 * 1024
_WORD = struct.Struct("<Q")
# Beyond it no user memory is.
_HIGHEST = 1 << 56

_readv = ctypes.CDLL(None, use_errno=True).process_vm_readv
_readv.restype = ctypes.c_ssize_t
_readv.argtypes = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
)


class TargetMemoryError(Exception):
    """Root of all; never raised itself."""


class UnreadableMemoryError(TargetMemoryError):
    """Nothing is mapped there, or what is there is not what was looked for."""


class MemoryLimitError(TargetMemoryError):
    """The reader has used up its bytes or its time."""


class MemoryGoneError(TargetMemoryError):
    """The process has ended."""


class MemoryDeniedError(TargetMemoryError):
    """The kernel does not let us look."""


class TargetMemory:
    """Memory of one process, with a bound on bytes and time."""

    def __init__(
        self,
        pid: int,
        *,
        max_bytes: int = 1 << 30,
        until: float = float("inf"),
        monotonic: Callable[[], float] = time.monotonic,
        beat: Callable[[], None] = lambda: None,
    ) -> None:
        """`until` is a time of `monotonic`, seconds, after which every read raises MemoryLimitError.

        `beat` is called before a read, at most ten times a second: what does not beat any more is stuck in one.
        """
        self.pid = pid
        self.calls = 0
        self.bytes = 0
        self._left = max_bytes
        self._until = until
        self._monotonic = monotonic
        self._beat = beat
        self._beaten = float("-inf")
        # Where every call reads to, made larger as needed.
        self._buffer = bytearray()
        self._address = 0

    def read(self, address: int, size: int) -> bytes:
        """Read one range whole. Raises TargetMemoryError."""
        data = self.read_many([(address, size)])[0]
        if data is None:
            raise UnreadableMemoryError(f"reading {size} bytes at {address:#x}: not mapped")
        return data

    def word(self, address: int) -> int:
        """Read 8 bytes as a number. Raises TargetMemoryError."""
        number: int = _WORD.unpack(self.read(address, 8))[0]
        return number

    def read_up_to(self, address: int, size: int) -> bytes:
        """Read a range, or what of it is mapped up to the end of a page. Raises TargetMemoryError."""
        whole = self.read_many([(address, size)])[0]
        if whole is not None:
            return whole
        return self.read(address, min(size, _PAGE - (address & (_PAGE - 1))))

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """Read many ranges with few calls; None for each that cannot be read whole. Raises TargetMemoryError."""
        found: list[bytes | None] = []
        at = 0
        while at < len(ranges):
            at = self._call(ranges, at, found)
        return found

    def _call(self, ranges: Sequence[tuple[int, int]], first: int, found: list[bytes | None]) -> int:
        self._may_go_on()
        flat, total = _flat(ranges[first : first + _RANGES])
        if not flat:  # an impossible range
            found.append(None)
            return first + 1
        count = len(flat) // 2
        self._left -= total
        if self._left < 0:
            raise MemoryLimitError("reading it takes more bytes than it may")
        if total > len(self._buffer):
            self._buffer = bytearray(total)
            self._address = ctypes.addressof((ctypes.c_char * total).from_buffer(self._buffer))
        local = array("Q", (self._address, total))
        got = _readv(self.pid, local.buffer_info()[0], 1, flat.buffer_info()[0], count, 0)
        self.calls += 1
        if got < 0:
            _raise_unless_unmapped(ctypes.get_errno(), self.pid)
            got = 0
        self.bytes += got
        with memoryview(self._buffer) as view:
            data = bytes(view[:got])
        if count == 1:
            found.append(data if got == total else None)
            return first + 1
        ends = list(accumulate(flat[1::2]))
        whole = bisect_right(ends, got)
        found += [data[begin:end] for begin, end in zip((0, *ends), ends[:whole], strict=False)]
        if whole < count:  # the first fault ends the call: leave this range out and go on behind it
            found.append(None)
            return first + whole + 1
        return first + count

    def _may_go_on(self) -> None:
        now = self._monotonic()
        if now > self._until:
            raise MemoryLimitError("the time for reading it is up")
        if now - self._beaten > _BEAT_S:
            self._beaten = now
            self._beat()


class PagedMemory(TargetMemory):
    """The same memory by whole pages, each read once: for much that is small and does not change meanwhile."""

    def __init__(self, memory: TargetMemory) -> None:
        """Nothing read yet; bytes and time are those of `memory`."""
        super().__init__(memory.pid)
        self._memory = memory
        self._pages: dict[int, bytes | None] = {}

    def forget(self) -> None:
        """Read anew what is asked for from now on."""
        self._pages.clear()

    def read(self, address: int, size: int) -> bytes:
        """Read one range whole. Raises TargetMemoryError."""
        page = self._pages.get(address & -_PAGE)
        at = address & (_PAGE - 1)
        if page is None or at + size > _PAGE or size < 0:
            return super().read(address, size)
        return page[at : at + size]

    def word(self, address: int) -> int:
        """Read 8 bytes as a number. Raises TargetMemoryError."""
        page = self._pages.get(address & -_PAGE)
        at = address & (_PAGE - 1)
        number: int = _WORD.unpack_from(page, at)[0] if page is not None and at <= _PAGE - 8 else super().word(address)
        return number

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes | None]:
        """Read many ranges; None for each that cannot be read whole. Raises TargetMemoryError."""
        pages = self._pages
        wanted: dict[int, None] = {}
        for address, size in ranges:
            if 0 < address < _HIGHEST and 0 < size <= _PAGED_BYTES:
                for page in range(address & -_PAGE, address + size, _PAGE):
                    if page not in pages:
                        wanted[page] = None
        if wanted:
            pages.update(zip(wanted, self._memory.read_many([(page, _PAGE) for page in wanted]), strict=True))
        return [self._assembled(address, size) for address, size in ranges]

    def _assembled(self, address: int, size: int) -> bytes | None:
        if not 0 < size <= _PAGED_BYTES or not 0 < address < _HIGHEST:
            return self._memory.read_many([(address, size)])[0]
        base = address & -_PAGE
        first = self._pages[base]
        end = address - base + size
        if end <= _PAGE:
            return first[address - base : end] if first is not None else None
        parts = [self._pages[page] for page in range(base, address + size, _PAGE)]
        if None in parts:
            return None
        return b"".join(part for part in parts if part is not None)[address - base : end]


def _flat(ranges: Sequence[tuple[int, int]]) -> tuple[array[int], int]:
    """The first of `ranges` that one call may read, as the kernel takes them, and the number of their bytes."""
    if len(ranges) > 1:
        with suppress(OverflowError):  # a negative number
            flat = array("Q", chain.from_iterable(ranges))
            total = sum(flat[1::2])
            if total <= _CALL_BYTES and min(flat[::2]) > 0 and max(flat[::2]) < _HIGHEST:
                return flat, total
    flat, total = array("Q"), 0
    for address, size in ranges:
        if not 0 < address < _HIGHEST or not 0 <= size <= _CALL_BYTES - total:
            break
        flat.extend((address, size))
        total += size
    return flat, total


def _raise_unless_unmapped(number: int, pid: int) -> None:
    if number == errno.ESRCH:
        raise MemoryGoneError(f"process {pid} has ended")
    if number in {errno.EPERM, errno.EACCES}:
        raise MemoryDeniedError(f"reading the memory of {pid}: {os.strerror(number)}")
    if number == errno.ENOMEM:
        raise MemoryLimitError(f"reading the memory of {pid}: {os.strerror(number)}")
