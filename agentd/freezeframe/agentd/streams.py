"""Byte streams of the listener: plain ones, and ones within TLS.

asyncio's own TLS ends a failed handshake without the alert that says why, so that to the client every refusal looks
like a broken connection. Here what OpenSSL has to say is always sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any

_PIECE_BYTES = 64 * 1024


class Stream:
    """Bytes as they are."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Use both ends of one connection."""
        self._reader = reader
        self._writer = writer

    @classmethod
    async def of(cls, connected: socket.socket) -> Stream:
        """Take a connected socket over, of either family."""
        return cls(*await asyncio.open_connection(sock=connected, limit=_PIECE_BYTES))

    async def read(self) -> bytes:
        """Give what has come, at least a byte; nothing at the end. Raises OSError."""
        return await self._reader.read(_PIECE_BYTES)

    async def write(self, data: bytes) -> None:
        """Send, and wait while the other side does not take it. Raises OSError."""
        self._writer.write(data)
        await self._writer.drain()

    def certificate(self) -> dict[str, Any]:
        """Give the verified certificate of the other side: none."""
        return {}

    def close(self, last: bytes = b"") -> None:
        """End it; what was written, and `last`, is still sent."""
        if last:
            self._writer.write(last)
        self._writer.close()


class TlsStream(Stream):
    """Bytes within TLS, on the server's side."""

    def __init__(self, plain: Stream, context: ssl.SSLContext) -> None:
        """Speak TLS over `plain`; `handshake` comes first."""
        self._plain = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    async def handshake(self) -> None:
        """Make it. Raises ssl.SSLError, whose alert was sent, EOFError, OSError."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                data = await self._plain.read()
                if not data:
                    raise EOFError from None
                self._incoming.write(data)
            except ssl.SSLError:
                await self._flush()
                raise
            else:
                await self._flush()
                return

    async def read(self) -> bytes:
        """Give what has come, at least a byte; nothing at the end. Raises OSError."""
        while True:
            try:
                return self._tls.read(_PIECE_BYTES)
            except ssl.SSLWantReadError:
                await self._flush()
                data = await self._plain.read()
                if not data:
                    return b""
                self._incoming.write(data)
            except ssl.SSLZeroReturnError:
                return b""

    async def write(self, data: bytes) -> None:
        """Send, and wait while the other side does not take it. Raises OSError."""
        self._tls.write(data)
        await self._flush()

    def certificate(self) -> dict[str, Any]:
        """Give the verified certificate of the other side."""
        return dict(self._tls.getpeercert() or {})

    def close(self, last: bytes = b"") -> None:
        """Say that it ends, and end it; `last` is for the plain kind alone."""
        # It waits for no answer, which is what "want read" says; a handshake that failed has nothing to unwrap.
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()
        self._plain.close(last or self._outgoing.read())

    async def _flush(self) -> None:
        if data := self._outgoing.read():
            await self._plain.write(data)
