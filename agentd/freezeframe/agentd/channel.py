"""Messages with descriptors over a socketpair between two processes of the agent.

SOCK_SEQPACKET: one send is one message. What is longer than a message travels in a memfd.
"""

from __future__ import annotations

import contextlib
import os
import socket

_MESSAGE_BYTES = 4096
_DESCRIPTORS = 4
MAX_BLOB_BYTES = 64 * 1024 * 1024


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(channel: socket.socket, message: bytes, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message. Raises OSError; BlockingIOError when the other end does not keep up."""
    socket.send_fds(channel, [message], list(descriptors), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one message; b"" at the end. The descriptors are the caller's to close. Raises OSError."""
    message, descriptors, _flags, _address = socket.recv_fds(
        channel, _MESSAGE_BYTES, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
    )
    return message, list(descriptors)


def close_all(descriptors: list[int]) -> None:
    """Close what came with a message that is not understood."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def blob(data: bytes) -> int:
    """Put bytes into a memfd to send its descriptor."""
    descriptor = os.memfd_create("freezeframe-job", os.MFD_CLOEXEC)
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
    return descriptor


def read_blob(descriptor: int) -> bytes:
    """Read what `blob` wrote. Raises ValueError when it is too long."""
    size = os.fstat(descriptor).st_size
    if size > MAX_BLOB_BYTES:
        raise ValueError(f"a job of {size} bytes")
    return os.pread(descriptor, size, 0)
