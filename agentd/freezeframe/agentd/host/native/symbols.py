"""Function names by address, from a file's own symbol table, with the sorted index kept on disk.

The index costs 0.3 microseconds per symbol to build, 60 ms for a router; kept, a look-up costs microseconds and no
start. It is found by build id and by the file's identity (device, inode, size, times): a build id alone is what a file
says of itself, and one target must not name another's functions.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from array import array
from bisect import bisect_right
from contextlib import suppress

from freezeframe.agentd.host.native.elf import SYMBOL_BYTES, Elf

_MAGIC = b"ffsym\0\0\1"
_HEAD = struct.Struct("<8sQ")
_NAME_BYTES = 4096
_FUNCTIONS = frozenset({0, 2, 10})  # NOTYPE (hand-written assembly), FUNC, GNU_IFUNC
_BINDING_RANK = (0, 2, 1)  # local, global, weak
# Index files kept; the oldest go.
KEPT_FILES = 256


class SymbolTable:
    """Names of one file's functions."""

    def __init__(self, image: memoryview, elf: Elf, index: memoryview) -> None:
        """Use an index as `build_index` makes it."""
        count = len(index) // 16
        self._addresses = index[: count * 8].cast("Q")
        self._sizes = index[count * 8 : count * 12].cast("I")
        self._names = index[count * 12 :].cast("I")
        self._image = image
        self._elf = elf

    def __len__(self) -> int:
        """Count of functions."""
        return len(self._addresses)

    def find(self, address: int) -> bytes:
        """Name of the function that an address lies in, mangled; empty when there is none."""
        at = bisect_right(self._addresses, address) - 1
        if at < 0:
            return b""
        size = self._sizes[at]
        if size and address - self._addresses[at] >= size:
            return b""
        return self._name(self._names[at])

    def _name(self, offset: int) -> bytes:
        table = self._elf.names
        if table is None or offset >= table.size:
            return b""
        start = table.offset + offset
        end = min(start + _NAME_BYTES, table.offset + table.size)
        return bytes(self._image[start:end]).partition(b"\0")[0]


def build_index(image: memoryview, elf: Elf) -> bytes:
    """Sort the functions of a file: n addresses of 64 bits, then n sizes and n name offsets of 32."""
    if elf.symbols is None or elf.symbols.size > SYMBOL_BYTES:
        return b""
    whole = elf.symbols.size - elf.symbols.size % 24
    # Each entry is three words: name 32 bits, info 8, other 8, section 16; value; size.
    with image[elf.symbols.offset : elf.symbols.offset + whole] as table:
        words = array("Q", bytes(table))
    heads, values, sizes = words[0::3], words[1::3], words[2::3]
    chosen: dict[int, tuple[int, int, int]] = {}
    for head, value, size in zip(heads, values, sizes):  # noqa: B905 - equal by construction; strict costs a tenth
        info = head >> 32 & 0xFF
        if not value or not head >> 48 or info & 15 not in _FUNCTIONS:
            continue
        if info & 15 == 0 and size == 0 and _is_mark(image, elf, head & 0xFFFFFFFF):
            continue
        binding = info >> 4
        rank = (1 if size else 0) * 4 + (_BINDING_RANK[binding] if binding < len(_BINDING_RANK) else 0)
        before = chosen.get(value)
        if before is None or before[0] < rank:
            chosen[value] = (rank, min(size, 0xFFFFFFFF), head & 0xFFFFFFFF)
    ordered = sorted(chosen)
    picked = [chosen[value] for value in ordered]
    return b"".join(
        (
            array("Q", ordered).tobytes(),
            array("I", [each[1] for each in picked]).tobytes(),
            array("I", [each[2] for each in picked]).tobytes(),
        )
    )


def _is_mark(image: memoryview, elf: Elf, offset: int) -> bool:
    """Whether a name is of a mark ("$x" of aarch64, ".L1"), not of a function."""
    if elf.names is None or offset >= elf.names.size:
        return True
    return bytes(image[elf.names.offset + offset : elf.names.offset + offset + 1]) in (b"$", b".", b"\0")


class SymbolCache:
    """Index files in a folder of the agent's state; without a folder every index is built anew."""

    def __init__(self, folder: str | None) -> None:
        """`folder` is made when it is first written to, for this user only."""
        self._folder = folder

    def table(self, image: memoryview, elf: Elf, identity: os.stat_result) -> SymbolTable:
        """Names of a file: from the kept index, else from a new one that is kept."""
        name = _file_name(elf, identity)
        index = self._load(name)
        if index is None:
            built = build_index(image, elf)
            self._keep(name, built)
            index = memoryview(built)
        return SymbolTable(image, elf, index)

    def _load(self, name: str) -> memoryview | None:
        if self._folder is None:
            return None
        try:
            descriptor = os.open(f"{self._folder}/{name}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return None
        try:
            size = os.fstat(descriptor).st_size
            if size < _HEAD.size:
                return None
            data = memoryview(mmap.mmap(descriptor, size, prot=mmap.PROT_READ))
        except (OSError, ValueError):
            return None
        finally:
            os.close(descriptor)
        magic, count = _HEAD.unpack_from(data, 0)
        if magic != _MAGIC or size != _HEAD.size + count * 16:
            return None  # of another version, or cut
        return data[_HEAD.size :]

    def _keep(self, name: str, index: bytes) -> None:
        if self._folder is None:
            return
        # A cache: where it cannot be written, the next look builds it again.
        with suppress(OSError):
            if not os.path.isdir(self._folder):
                os.mkdir(self._folder, 0o700)
            temporary = f"{self._folder}/{name}.{os.getpid()}"
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(_HEAD.pack(_MAGIC, len(index) // 16))
                file.write(index)
            os.rename(temporary, f"{self._folder}/{name}")
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        files = sorted((entry.stat().st_mtime_ns, entry.path) for entry in os.scandir(self._folder))
        for _, path in files[:-KEPT_FILES]:
            os.unlink(path)


def _file_name(elf: Elf, identity: os.stat_result) -> str:
    told = (identity.st_dev, identity.st_ino, identity.st_size, identity.st_mtime_ns, identity.st_ctime_ns)
    return f"{elf.build_id[:40] or 'none'}-{hashlib.sha256(repr(told).encode()).hexdigest()[:24]}"
