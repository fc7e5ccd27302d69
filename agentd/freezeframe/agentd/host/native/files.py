"""The files behind a process's code, mapped once per worker, and the names in them."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable
from contextlib import suppress

from freezeframe.agentd.host import procfs
from freezeframe.agentd.host.native import elf, image, mappings
from freezeframe.agentd.host.native.demangle import demangle
from freezeframe.agentd.host.native.symbols import SymbolCache, SymbolTable
from freezeframe.agentd.host.text import escape
from freezeframe.judge.model import NativeFrame

DEBUG_FOLDER = "/usr/lib/debug/.build-id"
# A vdso is 8 KiB; no more is taken of what calls itself one.
_VDSO_BYTES = 64 * 1024
_NAME_CHARACTERS = 256


class File:
    """One mapped file."""

    def __init__(self, mapped: image.Image, identity: os.stat_result | None, cache: SymbolCache, debug: str) -> None:
        """`identity` is None for what is no file. Raises ElfError, OSError."""
        self.image = mapped
        self.elf = elf.parse(mapped.view)
        if self.elf.headers is not None:
            mapped.allow_writes(self.elf.headers.offset, self.elf.headers.size)
        self._identity = identity
        self._cache = cache
        self._debug = debug
        self._table: SymbolTable | None = None

    def name(self, address: int) -> bytes:
        """Function at a virtual address as the file counts, mangled; empty when it has no name."""
        if self._table is None:
            self._table = self._of_debug_file() or self._of(self.image, self.elf, self._identity)
        return self._table.find(address)

    def _of(self, mapped: image.Image, parsed: elf.Elf, identity: os.stat_result | None) -> SymbolTable:
        if identity is None:
            return SymbolCache(None).table(mapped.view, parsed, os.stat("/"))
        return self._cache.table(mapped.view, parsed, identity)

    def _of_debug_file(self) -> SymbolTable | None:
        """The full table of a stripped file, where its debug package is installed on this host."""
        build_id = self.elf.build_id
        if not self.elf.stripped or len(build_id) < 8:  # noqa: PLR2004 - what a path is made of
            return None
        with suppress(OSError, elf.ElfError):
            descriptor = os.open(f"{self._debug}/{build_id[:2]}/{build_id[2:]}.debug", os.O_RDONLY | os.O_CLOEXEC)
            try:
                identity = os.fstat(descriptor)
                mapped = image.of_file(descriptor)
            finally:
                os.close(descriptor)
            parsed = elf.parse(mapped.view)
            if parsed.build_id == build_id and not parsed.stripped:
                return self._of(mapped, parsed, identity)
        return None


class Files:
    """Files already mapped, by identity: processes of one engine share most of theirs."""

    def __init__(self, cache: SymbolCache, debug: str = DEBUG_FOLDER) -> None:
        """Names are kept in `cache`; `debug` has the files of debug packages."""
        self._cache = cache
        self._debug = debug
        self._known: dict[tuple[int, int, int, int], File] = {}

    def open(self, directory: str, module: mappings.Module) -> File:
        """Map the file of a module. Raises ProcfsError, OSError, ElfError."""
        descriptor = mappings.open_file(directory, module)
        try:
            identity = os.fstat(descriptor)
            key = (identity.st_dev, identity.st_ino, identity.st_size, identity.st_mtime_ns)
            if key not in self._known:
                self._known[key] = File(image.of_file(descriptor), identity, self._cache, self._debug)
            return self._known[key]
        finally:
            os.close(descriptor)

    def of_memory(self, data: bytes) -> File:
        """Take what a process has in memory only. Raises ElfError."""
        return File(image.of_bytes(data), None, self._cache, self._debug)


class AddressSpace:
    """What is mapped in one process, with the files behind it."""

    def __init__(self, directory: str, files: Files, read: Callable[[int, int], bytes | None]) -> None:
        """Read `maps`; `read` gives bytes of the process's memory. Raises ProcfsError."""
        self._directory = directory
        self._files = files
        self._read = read
        self.mappings = mappings.read(directory)
        self.modules = mappings.modules(self.mappings)
        self._starts = [each.start for each in self.mappings]
        self._module_starts = [each.start for each in self.modules]
        self._opened: dict[int, File | str] = {}
        # Threads of one kind stand in the same functions.
        self._frames: dict[tuple[int, bool], NativeFrame] = {}

    @property
    def unreadable(self) -> dict[str, str]:
        """Modules that were needed and could not be opened, with why."""
        return {
            _base_name(module): found
            for module in self.modules
            if isinstance(found := self._opened.get(module.start), str)
        }

    def mapping_at(self, address: int) -> mappings.Mapping | None:
        """The mapping that an address lies in."""
        at = bisect_right(self._starts, address) - 1
        return self.mappings[at] if at >= 0 and address < self.mappings[at].end else None

    def image(self, start: int) -> tuple[int, int] | None:
        """Address and size, in our memory, of the file of the module that starts there."""
        module = self._module_at(start)
        file = self._file(module) if module is not None else None
        # libdw moves the parts of an object file where they lie, which nobody runs.
        return (file.image.address, file.image.size) if file is not None and file.elf.loadable else None

    def frame(self, counter: int, exact: bool) -> NativeFrame:
        """Name a program counter; of a caller it is behind the call, which may be the end of its function."""
        found = self._frames.get((counter, exact))
        if found is None:
            found = self._frames[counter, exact] = self._named(counter, exact)
        return found

    def _named(self, counter: int, exact: bool) -> NativeFrame:
        address = counter if exact else counter - 1
        mapping, module = self.mapping_at(address), self._module_at(address)
        if mapping is None or module is None:
            return NativeFrame(offset=float(counter))
        file = self._file(module)
        if file is None or (inside := file.elf.address(address - mapping.start + mapping.offset)) is None:
            return NativeFrame(module=_base_name(module), offset=float(counter - module.start))
        name = file.name(inside)
        return NativeFrame(
            function=demangle(name) if name else "",
            module=_base_name(module),
            offset=float(inside + counter - address),
        )

    def _module_at(self, address: int) -> mappings.Module | None:
        at = bisect_right(self._module_starts, address) - 1
        return self.modules[at] if at >= 0 and address < self.modules[at].end else None

    def _file(self, module: mappings.Module) -> File | None:
        found = self._opened.get(module.start)
        if found is None:
            found = self._opened[module.start] = self._open(module)
        return found if isinstance(found, File) else None

    def _open(self, module: mappings.Module) -> File | str:
        try:
            if module.name == b"[vdso]":
                data = self._read(module.start, min(module.end - module.start, _VDSO_BYTES))
                return self._files.of_memory(data) if data else "it could not be read"
            return self._files.open(self._directory, module)
        except (procfs.ProcfsError, OSError, elf.ElfError) as error:
            return str(error)


def _base_name(module: mappings.Module) -> str:
    return escape(module.name.rpartition(b"/")[2], _NAME_CHARACTERS)
