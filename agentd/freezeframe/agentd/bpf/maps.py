"""BPF maps by descriptor, through bpf(2) itself: the recorder holds no compiler and no bcc.

Keys and values are bytes; `layout` gives them their shape. Raises OSError with the operation in its text.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass

from freezeframe.agentd.bpf.syscalls import SYS_BPF

_LOOKUP, _UPDATE, _DELETE, _LOOKUP_BATCH = 1, 2, 3, 24
NO_EXIST = 1
# Entries of one batch; a hash bucket must fit.
_BATCH = 4096

_libc = ctypes.CDLL(None, use_errno=True)


class _Element(ctypes.Structure):
    _fields_ = (
        ("map_fd", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


class _Batch(ctypes.Structure):
    _fields_ = (
        ("in_batch", ctypes.c_uint64),
        ("out_batch", ctypes.c_uint64),
        ("keys", ctypes.c_uint64),
        ("values", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
        ("map_fd", ctypes.c_uint32),
        ("element_flags", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


def _bpf(command: int, attribute: ctypes.Structure) -> int:
    """Give 0 or the error number."""
    if _libc.syscall(SYS_BPF, command, ctypes.byref(attribute), ctypes.sizeof(attribute)) < 0:
        return ctypes.get_errno()
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """One map. Of a per-CPU map a value is that of all CPUs, one after the other."""

    name: str
    fd: int
    key_size: int
    value_size: int
    max_entries: int
    cpus: int = 1

    def get(self, key: bytes) -> bytes | None:
        """Give the value of a key, None when there is none."""
        value = ctypes.create_string_buffer(self.value_size * self.cpus)
        code = self._element(_LOOKUP, key, value)
        if code == errno.ENOENT:
            return None
        self._check(code, "looking up")
        return value.raw

    def put(self, key: bytes, value: bytes, flags: int = 0) -> bool:
        """Set a value; False when `flags` is NO_EXIST and there is one."""
        code = self._element(_UPDATE, key, ctypes.create_string_buffer(value, len(value)), flags)
        if code == errno.EEXIST:
            return False
        self._check(code, "updating")
        return True

    def push(self, value: bytes) -> None:
        """Append to a queue."""
        buffer = ctypes.create_string_buffer(value, len(value))
        attribute = _Element(map_fd=self.fd, value=ctypes.addressof(buffer))
        self._check(_bpf(_UPDATE, attribute), "pushing to")

    def drop(self, key: bytes) -> bool:
        """Delete a key; whether it was there."""
        code = self._element(_DELETE, key, None)
        if code == errno.ENOENT:
            return False
        self._check(code, "deleting from")
        return True

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries; one that is changed meanwhile may be missed or come twice."""
        for keys, values, count in self.batches():
            for i in range(count):
                yield (
                    keys[i * self.key_size : (i + 1) * self.key_size],
                    values[i * self.value_size : (i + 1) * self.value_size],
                )

    def batches(self) -> Iterator[tuple[bytes, bytes, int]]:
        """All entries of a hash, as long strings of keys and values with their number."""
        size = min(_BATCH, max(64, self.max_entries))
        position = ctypes.create_string_buffer(max(4, self.key_size))
        following = ctypes.create_string_buffer(max(4, self.key_size))
        keys = ctypes.create_string_buffer(size * self.key_size)
        values = ctypes.create_string_buffer(size * self.value_size)
        first = True
        while True:
            batch = _Batch(
                in_batch=0 if first else ctypes.addressof(position),
                out_batch=ctypes.addressof(following),
                keys=ctypes.addressof(keys),
                values=ctypes.addressof(values),
                count=size,
                map_fd=self.fd,
            )
            code = _bpf(_LOOKUP_BATCH, batch)
            if code not in (0, errno.ENOENT):
                self._check(code, "reading")
            if batch.count:
                yield (
                    ctypes.string_at(keys, batch.count * self.key_size),
                    ctypes.string_at(values, batch.count * self.value_size),
                    batch.count,
                )
            if code == errno.ENOENT:
                return
            first = False
            ctypes.memmove(position, following, len(position))

    def memory(self) -> mmap.mmap:
        """Map an array that was made for it; of its values each takes a multiple of 8 bytes."""
        page = mmap.PAGESIZE
        size = (self.value_size + 7) // 8 * 8 * self.max_entries
        return mmap.mmap(self.fd, (size + page - 1) // page * page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    def locked_bytes(self) -> int:
        """Memory that the kernel counts for it."""
        with open(f"/proc/self/fdinfo/{self.fd}", encoding="ascii") as stream:
            for line in stream:
                name, _, value = line.partition(":")
                if name == "memlock":
                    return int(value)
        return 0

    def _element(self, command: int, key: bytes, value: ctypes.Array[ctypes.c_char] | None, flags: int = 0) -> int:
        buffer = ctypes.create_string_buffer(key, len(key))
        attribute = _Element(
            map_fd=self.fd,
            key=ctypes.addressof(buffer),
            value=0 if value is None else ctypes.addressof(value),
            flags=flags,
        )
        return _bpf(command, attribute)

    def _check(self, code: int, what: str) -> None:
        if code:
            raise OSError(code, f"{what} the map {self.name}: {os.strerror(code)}")
