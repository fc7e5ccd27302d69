"""Messages between two processes of the agent: a JSON object per packet, descriptors beside it, never a blocking call.

A channel is one end of a socketpair of type SOCK_SEQPACKET. Each side trusts the other's build, not its content: what
is not a JSON object of at most MESSAGE_BYTES with at most two descriptors ends the channel.
"""

from __future__ import annotations

import json
import os
import socket
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

MESSAGE_BYTES = 16 * 1024
_DESCRIPTORS = 2
# Messages kept for a peer that does not read; past them the channel counts as ended.
_OUTBOX = 10_000
# Messages taken at once, so that one peer cannot keep a loop to itself.
_BATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One packet; the receiver owns the descriptors."""

    # "op" says what it is; the rest are its fields.
    fields: dict[str, Any]
    descriptors: tuple[int, ...] = ()

    @property
    def op(self) -> str:
        """What the message is."""
        return self.text("op")

    def text(self, name: str) -> str:
        """Give a text field, empty when it is absent or no text."""
        value = self.fields.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> int:
        """Give a whole number, 0 when it is absent or none."""
        value = self.fields.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    def close(self) -> None:
        """Close the descriptors that came with it."""
        close_all(self.descriptors)


def pair() -> tuple[socket.socket, socket.socket]:
    """Make two connected ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def encode(op: str, **fields: int | str) -> bytes:
    """Write one message."""
    return json.dumps({"op": op, **fields}, separators=(",", ":")).encode()


# Introduces two children of the supervisor to each other; one end of their channel goes with it.
INTRODUCTION = encode("peer")
# The same for launcher and recorder.
RECORDER_INTRODUCTION = encode("recorder")


def send(sock: socket.socket, message: bytes, descriptors: Sequence[int] = ()) -> None:
    """Send one message now. Raises OSError; BlockingIOError when the other end does not keep up."""
    socket.send_fds(sock, [message], list(descriptors), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Receive one message; b"" at the end, or for one that is too long. The descriptors are the caller's to close.

    Raises OSError; BlockingIOError when there is none on a socket that does not block.
    """
    message, descriptors, flags, _ = socket.recv_fds(sock, MESSAGE_BYTES, _DESCRIPTORS, socket.MSG_CMSG_CLOEXEC)
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(descriptors)
        return b"", []
    return message, list(descriptors)


def close_all(descriptors: Sequence[int]) -> None:
    """Close what came with a message that is not understood."""
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


class Channel:
    """One end; `closed` once the other end is gone or broke the rules."""

    def __init__(self, sock: socket.socket) -> None:
        """Take over a SOCK_SEQPACKET socket."""
        sock.setblocking(False)
        self._sock = sock
        self._outbox: deque[bytes] = deque()
        self.closed = False

    def fileno(self) -> int:
        """Give the descriptor to wait on."""
        return self._sock.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether `flush` has something to send once the socket is writable."""
        return bool(self._outbox) and not self.closed

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> bool:
        """Send, or keep for `flush`; False when it did not go and will not.

        A message with descriptors is sent now or not at all: they cannot be kept for later.
        """
        if self.closed or len(message) > MESSAGE_BYTES:
            return False
        if not descriptors:
            self._outbox.append(message)
            self.flush()
            return not self.closed
        try:
            if not self._outbox:
                send(self._sock, message, descriptors)
                return True
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        return False

    def flush(self) -> None:
        """Send what waits, as far as the other end takes it."""
        try:
            while self._outbox:
                send(self._sock, self._outbox[0])
                self._outbox.popleft()
        except BlockingIOError:
            self.closed = len(self._outbox) > _OUTBOX
        except OSError:
            self.closed = True

    def receive(self) -> list[Message]:
        """Take what has arrived, at most 64 messages; sets `closed` at the end of the channel."""
        messages: list[Message] = []
        while not self.closed and len(messages) < _BATCH:
            try:
                data, descriptors = receive(self._sock)
            except BlockingIOError:
                break
            except OSError:
                data, descriptors = b"", []
            fields = _decode(data)
            if fields is None:
                close_all(descriptors)
                self.closed = True
            else:
                messages.append(Message(fields=fields, descriptors=tuple(descriptors)))
        return messages

    def close(self) -> None:
        """End the channel; the other end sees it at once."""
        self.closed = True
        self._outbox.clear()
        with suppress(OSError):
            self._sock.close()


def _decode(data: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None
