"""What a worker writes: frames on its pipe, and one slot of shared memory that says what it is doing.

A worker handles hostile data and may be in the hands of it, so the front trusts nothing that comes from one: no length,
no kind, no number, no text. `FrameDecoder` does no I/O and raises FramingError for whatever is not exactly a frame.

A frame is: kind, 1 byte; length of the payload, 4 bytes, little-endian; payload.

The slot is the first SLOT_BYTES of a memory file; the job follows it. It is written with one pwrite before each step
(1 microsecond, whereas a frame would wake the front each time) and is still there when the worker is killed in that
step, even in a read that no signal ends.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from enum import IntEnum

from freezeframe.agentd.host.text import escape
from freezeframe.judge.model import Outcome

# Largest payload: one process with some 20,000 threads and their kernel stacks.
FRAME_BYTES = 16 * 1024 * 1024
# Largest sum over all frames of one run.
RUN_BYTES = 48 * 1024 * 1024
TEXT_BYTES = 4096

_HEADER = struct.Struct("<BI")
_PID = struct.Struct("<I")
_END = struct.Struct("<Bd")
_SLOT = struct.Struct("<IBH")

SLOT_BYTES = 1024
_SLOT_TEXT = SLOT_BYTES - _SLOT.size


class FramingError(ValueError):
    """A worker sent what is not a frame."""


class Kind(IntEnum):
    """First byte of a frame."""

    PART = 1
    DONE = 2
    MISSED = 3
    PARTIAL = 4
    END = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A Snapshot on the wire, not decoded yet."""

    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One target is finished."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """One target was not looked at, or not wholly."""

    pid: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Partial:
    """Something is missing that belongs to no single target."""

    detail: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The collector ended by itself; nothing follows."""

    status: Outcome.Status
    detail: str
    hint: str
    duration_ms: float


Frame = Part | Done | Missed | Partial | End


def encode(frame: Frame) -> bytes:
    """Write one frame. Raises FramingError when its payload is too large."""
    if isinstance(frame, Part):
        kind, payload = Kind.PART, frame.data
    elif isinstance(frame, Done):
        kind, payload = Kind.DONE, _PID.pack(frame.pid)
    elif isinstance(frame, Missed):
        kind, payload = Kind.MISSED, _PID.pack(frame.pid) + _text(frame.why)
    elif isinstance(frame, Partial):
        kind, payload = Kind.PARTIAL, _text(frame.detail) + b"\0" + _text(frame.hint)
    else:
        texts = _text(frame.detail) + b"\0" + _text(frame.hint)
        kind, payload = Kind.END, _END.pack(frame.status.value, frame.duration_ms) + texts
    if len(payload) > FRAME_BYTES:
        raise FramingError(f"a frame of {len(payload)} bytes is over {FRAME_BYTES}")
    return _HEADER.pack(kind, len(payload)) + payload


class FrameDecoder:
    """Bytes in, frames out; keeps at most one frame that is not whole yet."""

    def __init__(self, *, frame_bytes: int = FRAME_BYTES) -> None:
        """Refuse payloads over `frame_bytes`."""
        self._buffer = bytearray()
        self._frame_bytes = frame_bytes
        self._ended = False

    def feed(self, data: bytes) -> list[Frame]:
        """Take what was read and give the frames that are whole now. Raises FramingError."""
        self._buffer += data
        frames: list[Frame] = []
        start = 0
        while len(self._buffer) - start >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._buffer, start)
            limit = self._frame_bytes if kind == Kind.PART else _END.size + 2 * TEXT_BYTES + 1
            if length > limit:
                raise FramingError(f"a frame of kind {kind} with {length} bytes is over {limit}")
            if len(self._buffer) - start - _HEADER.size < length:
                break
            if self._ended:
                raise FramingError("a frame after the last one")
            start += _HEADER.size
            frames.append(_decode(kind, bytes(self._buffer[start : start + length])))
            start += length
            self._ended = isinstance(frames[-1], End)
        del self._buffer[:start]
        return frames


def _decode(kind: int, payload: bytes) -> Frame:
    try:
        if kind == Kind.PART:
            return Part(data=payload)
        if kind == Kind.DONE:
            return Done(pid=_PID.unpack(payload)[0])
        if kind == Kind.MISSED:
            return Missed(pid=_PID.unpack_from(payload)[0], why=escape(payload[_PID.size :], TEXT_BYTES))
        if kind == Kind.PARTIAL:
            detail, hint = _texts(payload)
            return Partial(detail=detail, hint=hint)
        if kind == Kind.END:
            status, duration_ms = _END.unpack_from(payload)
            detail, hint = _texts(payload[_END.size :])
            # A NaN or a negative time is no time.
            duration_ms = duration_ms if 0 <= duration_ms < float("inf") else 0.0
            return End(status=Outcome.Status(status), detail=detail, hint=hint, duration_ms=duration_ms)
    except (struct.error, ValueError) as error:
        raise FramingError(f"a frame of kind {kind} with {len(payload)} bytes: {error}") from error
    raise FramingError(f"a frame of unknown kind {kind}")


def _text(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")[:TEXT_BYTES].replace(b"\0", b" ")


def _texts(payload: bytes) -> tuple[str, str]:
    detail, separator, hint = payload.partition(b"\0")
    if not separator:
        raise ValueError("no separator between detail and hint")
    return escape(detail, TEXT_BYTES), escape(hint, TEXT_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """What the slot held at one moment."""

    # Rises with each write.
    count: int = 0
    # False while the worker hands over, waits, or has said nothing yet: then it is not stuck on a target.
    at_work: bool = False
    # What it is doing, escaped; the last thing it was doing when not at work.
    doing: str = ""


def write_slot(fd: int, count: int, *, at_work: bool, doing: bytes | None = None) -> None:
    """Write the slot; without `doing` the text stays."""
    if doing is None:
        # The length of the text lies behind these five bytes and stays too.
        os.pwrite(fd, struct.pack("<IB", count & 0xFFFFFFFF, at_work), 0)
    else:
        cut = doing[:_SLOT_TEXT]
        os.pwrite(fd, _SLOT.pack(count & 0xFFFFFFFF, at_work, len(cut)) + cut, 0)


def read_slot(fd: int) -> Slot:
    """Read the slot. Memory only: never blocks, and a file cut short by the worker is an empty slot."""
    data = os.pread(fd, SLOT_BYTES, 0)
    if len(data) < _SLOT.size:
        return Slot()
    count, at_work, length = _SLOT.unpack_from(data)
    return Slot(count=count, at_work=bool(at_work), doing=escape(data[_SLOT.size :][:length]))
