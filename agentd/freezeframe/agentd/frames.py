"""The framing between a worker and the front: one kind byte, four bytes of length, the payload.

A worker handles hostile data and may have been taken over by it, so the reader trusts no length and no kind.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum

_HEAD = struct.Struct(">BI")
# A worker splits what it hands over; nothing honest comes near these.
MAX_FRAME_BYTES = 16 * 1024 * 1024
MAX_TOTAL_BYTES = 256 * 1024 * 1024


class Kind(Enum):
    """What a frame holds."""

    # Text: what comes next.
    DOING = 1
    # Bytes of a wire Snapshot.
    PART = 2
    # A pid: this target is finished.
    DONE = 3
    # "PID WHY": this target was not looked at, or not wholly.
    MISSED = 4
    # "DETAIL\0HINT": something else is missing.
    PARTIAL = 5
    # "STATUS\0DETAIL\0HINT": the end.
    END = 6


class FrameError(ValueError):
    """Bytes that are no frame."""


def pack(kind: Kind, payload: bytes) -> bytes:
    """One frame."""
    return _HEAD.pack(kind.value, len(payload)) + payload


class Unpacker:
    """Cuts a stream into frames."""

    def __init__(self) -> None:
        """Start with nothing read."""
        self._buffer = bytearray()
        self._total = 0

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """Give the frames that are complete with `data`. Raises FrameError."""
        self._total += len(data)
        if self._total > MAX_TOTAL_BYTES:
            raise FrameError(f"more than {MAX_TOTAL_BYTES} bytes from one worker")
        self._buffer += data
        while len(self._buffer) >= _HEAD.size:
            number, length = _HEAD.unpack_from(self._buffer)
            if length > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {length} bytes")
            if len(self._buffer) < _HEAD.size + length:
                return
            payload = bytes(self._buffer[_HEAD.size : _HEAD.size + length])
            del self._buffer[: _HEAD.size + length]
            try:
                kind = Kind(number)
            except ValueError as error:
                raise FrameError(f"a frame of kind {number}") from error
            yield kind, payload
