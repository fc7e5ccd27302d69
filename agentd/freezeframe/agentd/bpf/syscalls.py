"""bpf(2) and perf_event_open(2) themselves: maps are created, programs loaded and attached with no library."""

from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import struct
from contextlib import suppress

from freezeframe.agentd.bpf.compiled import MapShape

SYS_BPF = {"x86_64": 321, "aarch64": 280}.get(os.uname().machine, 0)
_SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}.get(os.uname().machine, 0)
_MAP_CREATE, _PROG_LOAD, _RAW_TRACEPOINT_OPEN = 0, 5, 17
# enum bpf_prog_type.
TRACEPOINT, RAW_TRACEPOINT, TRACING = 5, 17, 26
# enum bpf_attach_type.
_TRACE_RAW_TP = 23
_NAME_BYTES = 15
_LOG_BYTES, _LOG_CHARACTERS = 1 << 24, 2000
_PERF_TYPE_TRACEPOINT, _PERF_ATTRIBUTE_BYTES, _PERF_CLOSE_ON_EXEC = 2, 112, 8
_PERF_SET_BPF, _PERF_ENABLE = 0x40042408, 0x2400

_libc = ctypes.CDLL(None, use_errno=True)


def create_map(shape: MapShape) -> int:
    """Give a descriptor of a new map. Raises OSError."""
    attribute = struct.pack(
        "=7I16s",
        shape.kind, shape.key_size, shape.value_size, shape.max_entries, shape.flags, 0, 0, _name(shape.name),
    )  # fmt: skip
    return _bpf(_MAP_CREATE, attribute, f"creating the map {shape.name}")


def load_program(name: str, kind: int, code: bytes, type_id: int = 0) -> int:
    """Give a descriptor of a verified program; `type_id` is that of the point of a TRACING one. Raises OSError.

    What the verifier said of one that it refuses is the error's text.
    """
    instructions = ctypes.create_string_buffer(code, len(code))
    license_name = ctypes.create_string_buffer(b"GPL")

    def attribute(log: ctypes.Array[ctypes.c_char] | None) -> bytes:
        return struct.pack(
            "=IIQQIIQII16sIIIIQIIQII",
            kind, len(code) // 8, ctypes.addressof(instructions), ctypes.addressof(license_name),
            0 if log is None else 1, 0 if log is None else len(log), 0 if log is None else ctypes.addressof(log),
            0, 0, _name(name), 0, _TRACE_RAW_TP if kind == TRACING else 0, 0, 0, 0, 0, 0, 0, 0, type_id,
        )  # fmt: skip

    what = f"loading the program {name}"
    try:
        return _bpf(_PROG_LOAD, attribute(None), what)
    except OSError as error:
        log = ctypes.create_string_buffer(_LOG_BYTES)
        with suppress(OSError):
            return _bpf(_PROG_LOAD, attribute(log), what)
        # How it ends tells why.
        said = log.value.decode("utf-8", "replace").strip()[-_LOG_CHARACTERS:]
        raise OSError(error.errno, f"{error.strerror}: {said}" if said else error.strerror) from error


def attach_raw_tracepoint(program: int, point: str) -> int:
    """Give a link; of a TRACING program the point is the one that it was loaded for. Raises OSError."""
    name = ctypes.create_string_buffer(point.encode())
    where = ctypes.addressof(name) if point else 0
    return _bpf(
        _RAW_TRACEPOINT_OPEN, struct.pack("=QIIQ", where, program, 0, 0), f"attaching to {point or 'its point'}"
    )


def attach_tracepoint(program: int, event: int) -> int:
    """Give an event of the kernel, by its id, that runs the program wherever it happens. Raises OSError."""
    attribute = struct.pack("=IIQQQQQII", _PERF_TYPE_TRACEPOINT, _PERF_ATTRIBUTE_BYTES, event, 1, 0, 0, 0, 1, 0)
    buffer = ctypes.create_string_buffer(attribute, _PERF_ATTRIBUTE_BYTES)
    descriptor: int = _libc.syscall(_SYS_PERF_EVENT_OPEN, buffer, -1, 0, -1, _PERF_CLOSE_ON_EXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), f"opening event {event}: {os.strerror(ctypes.get_errno())}")
    try:
        fcntl.ioctl(descriptor, _PERF_SET_BPF, program)
        fcntl.ioctl(descriptor, _PERF_ENABLE, 0)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def lock_as_much_as_needed() -> None:
    """Before 5.11 the memory of maps counts against the limit of locked memory; without the right to, it stays."""
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def _name(name: str) -> bytes:
    return name.encode()[:_NAME_BYTES]


def _bpf(command: int, attribute: bytes, what: str) -> int:
    buffer = ctypes.create_string_buffer(attribute, len(attribute))
    result: int = _libc.syscall(SYS_BPF, command, buffer, len(buffer))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result
