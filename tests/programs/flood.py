"""`python flood.py CONNECTIONS REQUESTS`: connections to itself, so many requests and answers over each in turn.

Prints "ready" when they are open, begins at a line on standard input, prints "done", waits for the next line.
"""

from __future__ import annotations

import os
import socket
import sys

REQUEST = b"GET /flood HTTP/1.1\r\nX-Request-Id: f\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def main() -> None:
    connections, requests = int(sys.argv[1]), int(sys.argv[2])
    pairs = []
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        for _ in range(connections):
            client = socket.create_connection(listener.getsockname())
            server, _ = listener.accept()
            pairs.append((client, server))
    print("ready", flush=True)
    sys.stdin.readline()
    numbers = [(client.fileno(), server.fileno()) for client, server in pairs]
    for number in range(requests):
        client, server = numbers[number % connections]
        os.write(client, REQUEST)
        os.read(server, 256)
        os.write(server, ANSWER)
        os.read(client, 256)
    print("done", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
