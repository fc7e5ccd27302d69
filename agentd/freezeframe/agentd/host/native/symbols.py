"""Function names by address, from a file's own symbol table, with the sorted index kept on disk.

The index costs half a microsecond per symbol to build, 100 ms for a router; kept, a look-up costs microseconds and no
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
from collections.abc import Callable
from contextlib import suppress

from freezeframe.agentd.host.native.elf import SYMBOL_BYTES, Elf

_MAGIC = b"ffsym\0\0\2"
_HEAD = struct.Struct("<8sQ")
_ENTRY = struct.Struct("<IBBHQQ")
_NAME_BYTES = 4096
# By type of a symbol: NOTYPE (hand-written assembly, and marks), FUNC, GNU_IFUNC.
_IS_FUNCTION = tuple(kind in (0, 2, 10) for kind in range(16))
_BINDING_RANK = (0, 2, 1)  # local, global, weak
# An index in the table takes so many bits of a number that is sorted: 16 million symbols.
_INDEX_BITS = 24
# Symbols looked at for one address: marks and folded functions lie before or at it.
_STEPS = 256
# Index files kept; the oldest go.
KEPT_FILES = 256


class SymbolTable:
    """Names of one file's functions."""

    def __init__(self, image: memoryview, elf: Elf, index: memoryview) -> None:
        """Use an index as `build_index` makes it."""
        count = len(index) // 12
        self._addresses = index[: count * 8].cast("Q")
        self._numbers = index[count * 8 :].cast("I")
        self._image = image
        self._elf = elf

    def __len__(self) -> int:
        """Count of functions and marks."""
        return len(self._addresses)

    def find(self, address: int) -> bytes:
        """Name of the function that an address lies in, mangled; empty when there is none."""
        at = bisect_right(self._addresses, address) - 1
        stop = max(-1, at - _STEPS)
        best, start = (-1, b"", 0), -1
        while at > stop:
            here = self._addresses[at]
            # All names of the nearest function are weighed; what lies before it is another one.
            if best[0] >= 0 and here != start:
                break
            found = self._symbol(self._numbers[at])
            if found is not None and found[0] > best[0]:
                best, start = found, here
            at -= 1
        _, name, size = best
        return name if not size or address - start < size else b""

    def _symbol(self, number: int) -> tuple[int, bytes, int] | None:
        """Rank, name and size of a symbol; None for what is a mark only ("$x" of aarch64, ".L1")."""
        table = self._elf.symbols
        if table is None or (number + 1) * _ENTRY.size > table.size:
            return None
        offset, info, _, _, _, size = _ENTRY.unpack_from(self._image, table.offset + number * _ENTRY.size)
        name = self._name(offset)
        if not name or (not size and name[:1] in (b"$", b".")):
            return None
        binding = info >> 4
        return (4 if size else 0) + (_BINDING_RANK[binding] if binding < len(_BINDING_RANK) else 0), name, size

    def _name(self, offset: int) -> bytes:
        table = self._elf.names
        if table is None or offset >= table.size:
            return b""
        start = table.offset + offset
        end = min(start + _NAME_BYTES, table.offset + table.size)
        return bytes(self._image[start:end]).partition(b"\0")[0]


def build_index(image: memoryview, elf: Elf) -> bytes:
    """Sort the functions of a file: n addresses of 64 bits, then n numbers of their symbols of 32."""
    if elf.symbols is None or elf.symbols.size > SYMBOL_BYTES:
        return b""
    whole = elf.symbols.size - elf.symbols.size % _ENTRY.size
    # Each entry is three words: name 32 bits, info 8, other 8, section 16; value; size.
    words = array("Q", bytes(image[elf.symbols.offset : elf.symbols.offset + whole]))
    ordered = sorted(
        [
            value << _INDEX_BITS | number
            for number, (head, value) in enumerate(zip(words[0::3], words[1::3]))  # noqa: B905 - of one length
            if value and head >> 48 and _IS_FUNCTION[head >> 32 & 15]
        ]
    )
    mask = (1 << _INDEX_BITS) - 1
    addresses = array("Q", [each >> _INDEX_BITS for each in ordered])
    return addresses.tobytes() + array("I", [each & mask for each in ordered]).tobytes()


class SymbolCache:
    """Index files in a folder of the agent's state; without a folder every index is built anew."""

    def __init__(self, folder: str | None, building: Callable[[], None] = lambda: None) -> None:
        """`folder` is made when it is first written to, for this user only; `building` is called before each sort."""
        self._folder = folder
        self._building = building

    def table(self, image: memoryview, elf: Elf, identity: os.stat_result) -> SymbolTable:
        """Names of a file: from the kept index, else from a new one that is kept."""
        name = _file_name(elf, identity)
        index = self._load(name)
        if index is None:
            self._building()
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
        if magic != _MAGIC or size != _HEAD.size + count * 12:
            return None  # of another version, or cut
        return data[_HEAD.size :]

    def _keep(self, name: str, index: bytes) -> None:
        if self._folder is None:
            return
        # A cache: where it cannot be written, the next look builds it again.
        with suppress(OSError):
            # The state's folder, too: before the first capture is kept there is none.
            for folder in (os.path.dirname(self._folder), self._folder):
                if not os.path.isdir(folder):
                    os.mkdir(folder, 0o700)
            temporary = f"{self._folder}/{name}.{os.getpid()}"
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(_HEAD.pack(_MAGIC, len(index) // 12))
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
