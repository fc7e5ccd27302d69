"""A program that looks like a router and puts control characters wherever another process may read its words.

Prints its port; ends at the end of its input. Run as a file whose own path has some, with a hostile argument.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import threading
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

EVIL = "\x1b]0;pwned\x07\x1b[31m\u202e\x9b"
PR_SET_NAME = 15


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = (
            f'smg_worker_requests_active{{worker="{EVIL}"}} 7\n'
            if self.path == "/metrics"
            else f'{{"workers": [{{"url": "http://{EVIL}", "is_healthy": false, "load": 3}}], "total": 1}}'
        ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def evil_function_name() -> None:
    # Seen in stacks; the name of the file has control characters too.
    sys.stdin.read()


def main() -> None:
    setproctitle = __import__("setproctitle").setproctitle
    setproctitle(f"hostile-router {EVIL} --api-key=hunter2")
    ctypes.CDLL(None).prctl(PR_SET_NAME, ctypes.c_char_p(f"r {EVIL}".encode()), 0, 0, 0)
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    span = f'http_request{{method=PO{EVIL}ST uri=/v1/{EVIL} request_id="id{EVIL}"}}'
    log = open(f"router {EVIL}.log", "w", buffering=1)  # noqa: SIM115
    log.write(f"{now}  INFO {span}: started processing request\nthread '{EVIL}' panicked at x\n")
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(f"s{EVIL}")
    unix.listen()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True, name=f"t{EVIL}").start()
    client = socket.create_connection(server.server_address)
    client.sendall(f"GET /{EVIL} HTTP/1.1\r\nx-request-id: {EVIL}\r\n".encode())
    print(server.server_address[1], os.getpid(), flush=True)
    evil_function_name()


main()
