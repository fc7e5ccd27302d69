"""Runs in a network namespace of its own: a connection whose loopback goes down with 53 bytes under way.

Says "PORT" once that is so; ends at the end of its input.
"""

from __future__ import annotations

import socket
import subprocess
import sys


def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    client.sendall(b"x" * 101)
    server.recv(101, socket.MSG_WAITALL)
    server.sendall(b"z" * 11)
    client.recv(11, socket.MSG_WAITALL)
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
    client.sendall(b"y" * 53)
    print(listener.getsockname()[1], flush=True)
    sys.stdin.read()


main()
