"""A file in our memory, by address: what libelf takes and symbol tables are read from."""

from __future__ import annotations

import ctypes
import mmap
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_FAILED = ctypes.c_void_p(-1).value


class Image:
    """Bytes at an address, to be read. Mapped, so that only the pages in use are read and none counts as our memory.

    A file that is cut while it is mapped ends this process when the missing part is read.
    """

    def __init__(self, address: int, size: int, keep: object = None) -> None:
        """Take what is there already; `keep` is what holds it."""
        self.address = address
        self.size = size
        self.view = memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
        self._keep = keep

    def allow_writes(self, offset: int, size: int) -> None:
        """Let a part be written to, in our memory alone: its pages count as ours from then on. Raises OSError.

        libelf marks a section header as uncompressed where it lies, however it was opened.
        """
        if self._keep is not None:
            return
        start = (self.address + offset) & -mmap.PAGESIZE
        if _libc.mprotect(start, self.address + offset + size - start, mmap.PROT_READ | mmap.PROT_WRITE) < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def close(self) -> None:
        """Unmap a file."""
        if self._keep is None and self.size:
            self.view.release()
            _libc.munmap(self.address, self.size)
            self.size = 0


def of_file(descriptor: int) -> Image:
    """Map a file; the descriptor may be closed afterwards. Raises OSError."""
    size = os.fstat(descriptor).st_size
    if not size:
        raise OSError(22, "an empty file")
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
    if address is None or address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return Image(address, size)


def of_bytes(data: bytes) -> Image:
    """Take a copy of some bytes."""
    buffer = ctypes.create_string_buffer(data, len(data))
    return Image(ctypes.addressof(buffer), len(data), keep=buffer)
