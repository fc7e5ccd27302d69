"""Which two ends belong together through a published port: what connection tracking says of translated addresses.

Read from /proc/PID/net/nf_conntrack, which is the table of that process's network namespace:

    ipv4 2 tcp 6 431999 ESTABLISHED src=10.0.0.5 dst=10.0.0.1 sport=50000 dport=30000
      src=172.17.0.2 dst=10.0.0.5 sport=8000 dport=50000 [ASSURED] mark=0 zone=0 use=2        (one line)

The first four are the connection as its client sees it, the others as its server's answers go.
"""

from __future__ import annotations

import os
import re
import socket
from dataclasses import dataclass

# A table of 80,000 connections.
_TABLE_BYTES = 16 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024
_TUPLE = rb"src=([0-9a-f.:]+) dst=([0-9a-f.:]+) sport=(\d+) dport=(\d+) "
_ENTRY = re.compile(rb"^ipv[46] +\d+ tcp +6 [^\n]*?" + _TUPLE + rb"[^\n]*?" + _TUPLE, re.MULTILINE)

# Local and remote address, as in TcpSocket.
Ends = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Translations:
    """The translated connections of one namespace."""

    # One end of a connection as its own socket has it, to the other end as that one's socket has it; both ways.
    other_end: dict[Ends, Ends]
    # Why some are missing; empty when none is.
    missing: str = ""


def translations(proc: str, pid: int | str) -> Translations:
    """Read the table of the namespace that a process lives in."""
    path = f"{proc}/{pid}/net/nf_conntrack"
    if _is_empty(f"{proc}/{pid}/net/stat/nf_conntrack"):
        return Translations(other_end={})
    try:
        data = _read(path)
    except FileNotFoundError:
        # Without connection tracking nothing is translated; with it, the kernel may have been built without the table.
        if os.path.exists(f"{proc}/sys/net/netfilter/nf_conntrack_max"):
            return Translations(other_end={}, missing="this kernel has no /proc/net/nf_conntrack")
        return Translations(other_end={})
    except OSError as error:
        return Translations(other_end={}, missing=f"reading {path}: {error.strerror}")
    cut = len(data) >= _TABLE_BYTES
    missing = f"only the first {_TABLE_BYTES >> 20} MiB of {path} were read" if cut else ""
    return Translations(other_end=parse(data), missing=missing)


def parse(data: bytes) -> dict[Ends, Ends]:
    """Parse a table; only connections whose addresses or ports were changed on their way."""
    found: dict[Ends, Ends] = {}
    for entry in _ENTRY.finditer(data):
        client, server, client_port, server_port, source, destination, source_port, destination_port = entry.groups()
        if (client, client_port, server, server_port) == (destination, destination_port, source, source_port):
            continue
        try:
            asked = f"{_host(client)}:{int(client_port)}", f"{_host(server)}:{int(server_port)}"
            answered = f"{_host(source)}:{int(source_port)}", f"{_host(destination)}:{int(destination_port)}"
        except OSError:
            continue
        found[asked] = answered
        found[answered] = asked
    return found


def _is_empty(statistics: str) -> bool:
    """Whether a namespace tracks nothing, as most of pods: its table is found by going through that of all others."""
    try:
        rows = _read(statistics).splitlines()
        return int(rows[1].split()[0], 16) == 0
    except (OSError, ValueError, IndexError):
        return False


def _host(text: bytes) -> str:
    if b":" not in text:
        return text.decode("ascii")
    return f"[{socket.inet_ntop(socket.AF_INET6, socket.inet_pton(socket.AF_INET6, text.decode('ascii')))}]"


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = bytearray()
        while len(data) < _TABLE_BYTES and (piece := os.read(descriptor, _PIECE_BYTES)):
            data += piece
        return bytes(data)
    finally:
        os.close(descriptor)
