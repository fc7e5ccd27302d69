"""Sockets of one network namespace, the agent's own or another, as well as they can be had.

Another namespace is asked over netlink from inside (CAP_SYS_ADMIN); where that is refused, /proc/PID/net/tcp of a
process that lives in it gives addresses, states and queues, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from freezeframe.agentd.host import sock_diag
from freezeframe.agentd.host.sock_diag import TCP_STATES, SockDiagError, TcpSocket, UnixSocket

# A table of 100,000 connections.
_TABLE_BYTES = 16 * 1024 * 1024
_MAPPED = b"\0" * 10 + b"\xff\xff"
_COLUMNS = 10
# PROC_PID_INIT_INO of include/linux/proc_ns.h.
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC
# What to say, and what helps, where they are not.
OTHER_PIDS = "this agent lives in a pid namespace of its own, and eBPF speaks of the host's pids"
HOST_PIDS_HINT = "run it with the host's pids: docker run --pid=host, hostPID: true"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """The sockets of one namespace."""

    tcp: list[TcpSocket]
    unix: list[UnixSocket]
    # Why ages, bytes, accept limits and unix sockets are missing; empty when they are not.
    coarse: str = ""


def namespace_of(proc: str, pid: int | str) -> int:
    """Inode of the network namespace of a process; 0 when it is gone or may not be known."""
    with contextlib.suppress(OSError):
        number = os.readlink(f"{proc}/{pid}/ns/net").removeprefix("net:[").removesuffix("]")
        return int(number) if number.isdecimal() else 0
    return 0


def sees_host_pids() -> bool:
    """Whether our pids are the host's: eBPF speaks of these alone."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return True


def namespaces_of(proc: str, pids: Iterable[int]) -> dict[int, int]:
    """Namespace -> the first of these processes that lives in it."""
    found: dict[int, int] = {}
    for pid in pids:
        namespace = namespace_of(proc, pid)
        if namespace:
            found.setdefault(namespace, pid)
    return found


def sockets_of(proc: str, pid: int | None) -> Tables:
    """Read the sockets of the namespace that a process lives in; None for the agent's own. Raises SockDiagError."""
    if pid is None:
        return Tables(tcp=sock_diag.tcp_sockets(), unix=sock_diag.unix_sockets())
    path = f"{proc}/{pid}/ns/net"
    try:
        return Tables(tcp=sock_diag.tcp_sockets(path), unix=sock_diag.unix_sockets(path))
    except SockDiagError as error:
        found = []
        for name in ("tcp", "tcp6"):
            with contextlib.suppress(OSError), open(f"{proc}/{pid}/net/{name}", "rb") as stream:
                found += parse_table(stream.read(_TABLE_BYTES))
        if not found:
            raise
        return Tables(tcp=found, unix=[], coarse=str(error))


def parse_table(table: bytes) -> list[TcpSocket]:
    """Parse /proc/net/tcp or tcp6, without TIME-WAIT; a line that is not one is left out."""
    found = []
    for line in table.splitlines()[1:]:
        columns = line.split()
        if len(columns) < _COLUMNS:
            continue
        with contextlib.suppress(ValueError, struct.error):
            state = TCP_STATES.get(int(columns[3], 16), "")
            send_queue, _, receive_queue = columns[4].partition(b":")
            local, local_port = _address(columns[1])
            remote, remote_port = _address(columns[2])
            if state in ("", "TIME-WAIT"):
                continue
            found.append(
                sock_diag.without_marks(
                    TcpSocket(
                        state,
                        f"{local}:{local_port}",
                        local_port,
                        f"{remote}:{remote_port}" if remote_port else "",
                        int(receive_queue, 16),
                        int(send_queue, 16),
                        int(columns[9]),
                        None,
                    )
                )
            )
    return found


def _address(text: bytes) -> tuple[str, int]:
    """Decode "0100007F:1F90": words of the host's order."""
    words, _, port = text.partition(b":")
    data = b"".join(struct.pack("=I", int(words[place : place + 8], 16)) for place in range(0, len(words), 8))
    if len(data) == len(_MAPPED) + 4 and data.startswith(_MAPPED):
        data = data[-4:]
    if len(data) == 4:  # noqa: PLR2004
        return socket.inet_ntop(socket.AF_INET, data), int(port, 16)
    return f"[{socket.inet_ntop(socket.AF_INET6, data)}]", int(port, 16)
