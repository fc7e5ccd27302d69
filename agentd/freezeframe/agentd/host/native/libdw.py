"""The part of elfutils' libdw that unwinds, through ctypes: offline, from copied registers and stack bytes.

libdw opens no file and no process by itself here: files are handed to it as images in memory, and what it reads of a
target's memory it is given. Written for elfutils 0.176 and later, tried with 0.188.
"""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from freezeframe.agentd.host.native.machine import Registers

_POINTER, _WORD, _INT, _BOOL = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_bool
_ABORT, _OK = 1, 0
_COPIED = struct.Struct("<Q")

_FIND_ELF = ctypes.CFUNCTYPE(
    _INT, _POINTER, _POINTER, ctypes.c_char_p, _WORD, ctypes.POINTER(_POINTER), ctypes.POINTER(_POINTER)
)
_FIND_DEBUGINFO = ctypes.CFUNCTYPE(
    _INT, _POINTER, _POINTER, _POINTER, _WORD, _POINTER, _POINTER, ctypes.c_uint32, _POINTER
)
_NEXT_THREAD = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, ctypes.POINTER(_POINTER))
_GET_THREAD = ctypes.CFUNCTYPE(_BOOL, _POINTER, _INT, _POINTER, ctypes.POINTER(_POINTER))
_MEMORY_READ = ctypes.CFUNCTYPE(_BOOL, _POINTER, _WORD, ctypes.POINTER(_WORD), _POINTER)
_SET_REGISTERS = ctypes.CFUNCTYPE(_BOOL, _POINTER, _POINTER)
_ON_FRAME = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER)


class _Callbacks(ctypes.Structure):
    """Dwfl_Callbacks."""

    _fields_ = (
        ("find_elf", _FIND_ELF),
        ("find_debuginfo", _FIND_DEBUGINFO),
        ("section_address", _POINTER),
        ("debuginfo_path", _POINTER),
    )


class _ThreadCallbacks(ctypes.Structure):
    """Dwfl_Thread_Callbacks."""

    _fields_ = (
        ("next_thread", _NEXT_THREAD),
        ("get_thread", _GET_THREAD),
        ("memory_read", _MEMORY_READ),
        ("set_initial_registers", _SET_REGISTERS),
        ("detach", _POINTER),
        ("thread_detach", _POINTER),
    )


class LibdwError(Exception):
    """libdw is not there, or does not do what is asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwound:
    """One stack, innermost frame first."""

    # Program counter of each frame and whether it is exact: a caller's is that after its call.
    frames: tuple[tuple[int, bool], ...]
    # Why it ended before its outermost frame; empty when it did not.
    cut: str


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libdw.so.1", use_errno=True)
        for name, result, arguments in (
            ("dwfl_begin", _POINTER, (_POINTER,)),
            ("dwfl_end", None, (_POINTER,)),
            ("dwfl_report_begin", None, (_POINTER,)),
            ("dwfl_report_end", _INT, (_POINTER, _POINTER, _POINTER)),
            ("dwfl_report_module", _POINTER, (_POINTER, ctypes.c_char_p, _WORD, _WORD)),
            ("dwfl_attach_state", _BOOL, (_POINTER, _POINTER, _INT, _POINTER, _POINTER)),
            ("dwfl_getthread_frames", _INT, (_POINTER, _INT, _ON_FRAME, _POINTER)),
            ("dwfl_thread_state_registers", _BOOL, (_POINTER, _INT, ctypes.c_uint, _POINTER)),
            ("dwfl_thread_state_register_pc", None, (_POINTER, _WORD)),
            ("dwfl_frame_pc", _BOOL, (_POINTER, ctypes.POINTER(_WORD), ctypes.POINTER(_BOOL))),
            ("dwfl_errmsg", ctypes.c_char_p, (_INT,)),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise LibdwError(f"loading libdw: {error}") from error
    return library


@functools.cache
def _libelf() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libelf.so.1", use_errno=True)
        library.elf_version.restype, library.elf_version.argtypes = ctypes.c_uint, (ctypes.c_uint,)
        library.elf_memory.restype, library.elf_memory.argtypes = _POINTER, (_POINTER, ctypes.c_size_t)
        library.elf_version(1)
    except (OSError, AttributeError) as error:
        raise LibdwError(f"loading libelf: {error}") from error
    return library


def load() -> None:
    """Load the libraries, 1 ms. Raises LibdwError."""
    _library()
    _libelf()


class Unwinder:
    """Unwinds threads of one process from what was copied of it."""

    def __init__(
        self,
        modules: Iterable[tuple[int, int]],
        image: Callable[[int], tuple[int, int] | None],
        read_word: Callable[[int], int | None],
        *,
        frames: int,
    ) -> None:
        """Take the modules by start and end. Raises LibdwError.

        `image` gives address and size, in our memory, of the file of the module that starts there; `read_word` a word
        of the target's memory.
        """
        self._library = _library()
        self._image = image
        self._read_word = read_word
        self._limit = frames
        self._registers: Registers = ()
        self._base, self._stack, self._last = 0, b"", -1
        self._program_counter: int | None = None
        self._found: list[tuple[int, bool]] = []
        # What goes wrong in a callback: libdw cannot carry it.
        self._raised: BaseException | None = None
        self._callbacks = _Callbacks(_FIND_ELF(self._find_elf), _FIND_DEBUGINFO(lambda *_: -1), None, None)
        self._thread_callbacks = _ThreadCallbacks(
            _NEXT_THREAD(lambda *_: 0),
            _GET_THREAD(self._get_thread),
            _MEMORY_READ(self._memory_read),
            _SET_REGISTERS(self._set_registers),
            None,
            None,
        )
        self._on_frame = _ON_FRAME(self._take_frame)
        self._counter, self._exact = _WORD(), _BOOL()
        self._into = ctypes.byref(self._counter), ctypes.byref(self._exact)
        self._frame_pc = self._library.dwfl_frame_pc
        self._handle = self._library.dwfl_begin(ctypes.byref(self._callbacks))
        if not self._handle:
            raise LibdwError(f"starting libdw: {self._said()}")
        self._library.dwfl_report_begin(self._handle)
        for start, end in modules:
            # Named by its start: find_elf gets the name and the base that we gave.
            self._library.dwfl_report_module(self._handle, f"{start:x}".encode(), start, end)
        self._library.dwfl_report_end(self._handle, None, None)
        attached = self._library.dwfl_attach_state(self._handle, None, 1, ctypes.byref(self._thread_callbacks), None)
        if not attached:
            said = self._said()
            self.close()
            raise LibdwError(f"attaching libdw to a copied process: {said}")

    def close(self) -> None:
        """Free what libdw holds."""
        if self._handle:
            self._library.dwfl_end(self._handle)
            self._handle = None

    def unwind(self, registers: Registers, program_counter: int, base: int = 0, stack: bytes = b"") -> Unwound:
        """Unwind from these registers, by DWARF number; `stack` was copied from `base` up."""
        self._base, self._stack, self._last = base, stack, len(stack) - _COPIED.size
        self._registers, self._program_counter = registers, program_counter
        self._found, self._raised = [], None
        status = self._library.dwfl_getthread_frames(self._handle, 1, self._on_frame, None)
        if self._raised is not None:
            raise self._raised
        if len(self._found) >= self._limit:
            return Unwound(frames=tuple(self._found), cut=f"only the {self._limit} innermost frames were taken")
        return Unwound(frames=tuple(self._found), cut=self._said() if status < 0 else "")

    def _said(self) -> str:
        message: bytes | None = self._library.dwfl_errmsg(-1)
        return message.decode("ascii", "replace") if message else "no reason given"

    def _find_elf(self, _m: int, _u: int, _name: bytes, base: int, _file: object, elf: Sequence[int]) -> int:
        try:
            found = self._image(base)
            if found is not None:
                elf[0] = _libelf().elf_memory(*found)  # type: ignore[index]
        except Exception as error:  # noqa: BLE001 - kept for `unwind`
            self._raised = error
        return -1

    def _get_thread(self, _dwfl: int, _tid: int, _arg: int, thread: Sequence[int]) -> bool:
        thread[0] = 1  # type: ignore[index]
        return True

    def _memory_read(self, _dwfl: int, address: int, result: Sequence[int], _arg: int) -> bool:
        # Three times per frame: the copied stack without another call.
        at = address - self._base
        if 0 <= at <= self._last:
            result[0] = _COPIED.unpack_from(self._stack, at)[0]  # type: ignore[index]
            return True
        try:
            word = self._read_word(address)
        except Exception as error:  # noqa: BLE001 - kept for `unwind`
            self._raised = error
            return False
        if word is None:
            return False
        result[0] = word  # type: ignore[index]
        return True

    def _set_registers(self, thread: int, _arg: int) -> bool:
        registers = self._registers
        at = 0
        while at < len(registers):
            end = at
            while end < len(registers) and registers[end] is not None:
                end += 1
            if end > at:
                values = (_WORD * (end - at))(*(value or 0 for value in registers[at:end]))
                if not self._library.dwfl_thread_state_registers(thread, at, end - at, values):
                    return False
            at = end + 1
        self._library.dwfl_thread_state_register_pc(thread, self._program_counter)
        return True

    def _take_frame(self, frame: int, _arg: int) -> int:
        if not self._frame_pc(frame, *self._into):
            return _ABORT
        self._found.append((self._counter.value, self._exact.value))
        return _ABORT if len(self._found) >= self._limit else _OK
