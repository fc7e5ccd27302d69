"""Addresses as sockets have them: "127.0.0.1:30000", "[::1]:30000"."""

from __future__ import annotations

LOOPBACK = ("127.", "[::1]")


def plain(address: str) -> str:
    """An IPv4 address that came through an IPv6 socket, as IPv4."""
    if address.startswith("[::ffff:") and "." in address:
        host, _, port = address[len("[::ffff:") :].partition("]")
        return host + port
    return address


def host_of(address: str) -> str:
    """The address without its port."""
    return plain(address).rpartition(":")[0].strip("[]")


def port_of(address: str) -> int:
    """The port alone; 0 when there is none."""
    tail = address.rpartition(":")[2]
    return int(tail) if tail.isdigit() else 0
