"""NCCL's RAS service, which every process with NCCL 2.24 or later has: what its ranks know of one another, as text.

A line protocol on 127.0.0.1:28028: both sides tell their version, the client may set a timeout, and "VERBOSE STATUS" is
answered until the connection ends. A thread of its own answers, and asks the other processes of the job; nothing in the
job waits for it. Source: NCCL User Guide, "RAS"; nccl's ras/client.cc.
"""

from __future__ import annotations

import socket
import time

PORT = 28028
_PROTOCOL = 2
_LINE_BYTES = 4096


class RasError(Exception):
    """No answer, or none that NCCL would give."""


def status(host: str, *, timeout_s: float, limit: int) -> bytes:
    """Ask for the status of the job; at most `limit` bytes, within `timeout_s`.

    Raises:
        RasError: nobody answers there, or somebody else.
    """
    until = time.monotonic() + timeout_s
    try:
        with socket.create_connection((host, PORT), timeout=timeout_s) as connection:
            if not _ask(connection, f"CLIENT PROTOCOL {_PROTOCOL}", until).upper().startswith(b"SERVER PROTOCOL"):
                raise RasError(f"asking {host}:{PORT}: no NCCL answers there")
            # Of the other processes, seconds; with less than ours one that hangs is told of.
            if _ask(connection, f"TIMEOUT {max(1, int(timeout_s / 2))}", until).strip().upper() != b"OK":
                raise RasError(f"asking {host}:{PORT}: it takes no timeout")
            connection.sendall(b"VERBOSE STATUS\n")
            answer = b""
            while len(answer) < limit and (data := _receive(connection, until)):
                answer += data
            return answer[:limit]
    except OSError as error:
        raise RasError(f"asking {host}:{PORT}: {error.strerror or error}") from error


def _ask(connection: socket.socket, line: str, until: float) -> bytes:
    connection.sendall(line.encode() + b"\n")
    answer = b""
    while not answer.endswith(b"\n") and len(answer) < _LINE_BYTES and (data := _receive(connection, until)):
        answer += data
    return answer


def _receive(connection: socket.socket, until: float) -> bytes:
    connection.settimeout(max(0.01, until - time.monotonic()))
    return connection.recv(_LINE_BYTES)
