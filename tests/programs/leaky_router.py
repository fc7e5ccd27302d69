"""A program that looks like a router and carries secrets wherever another process may read its words.

Run with the secrets, as they are written, as arguments; works in its own directory. Prints its pid once everything is
in place; ends at the end of its input.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote

PR_SET_NAME = 15
WAITS = """
def wait_with(local, ended, ready):
    header = f"Authorization: Bearer {local}"
    ready.release()
    ended.wait()
    return header
"""


def wait(text: str, ended: threading.Event, ready: threading.Semaphore) -> None:
    """Stand in a frame whose file and local variables have `text`, in a thread called after it."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, ctypes.c_char_p(text.encode()), 0, 0, 0)
    space: dict[str, object] = {}
    exec(compile(WAITS, f"/srv/{text}/serving.py", "exec"), space)
    space["wait_with"](text, ended, ready)  # type: ignore[operator]


def main() -> None:
    texts = sys.argv[1:]
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    server = socket.create_server(("127.0.0.1", 0), backlog=len(texts))
    kept: list[object] = []
    ended, ready = threading.Event(), threading.Semaphore(0)
    for number, text in enumerate(texts):
        folder = Path(f"logs-{number}", text.replace("/", "_"))
        folder.mkdir(parents=True)
        log = (folder / "router.log").open("w", buffering=1)
        span = f'http_request{{method=POST uri=/v1/models?key={quote(text)} request_id="id-{number}"}}'
        log.write(f"{now}  INFO {span}: started processing request\n{now} ERROR upstream said {text} and closed\n")
        log.write(f"thread 'worker' panicked at {text}\n")
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        # It is never answered.
        head = f"POST /v1/{quote(text, safe='')}?key={quote(text)} HTTP/1.1\r\nHost: x\r\n"
        client.sendall(f"{head}Authorization: Bearer {quote(text)}\r\nX-Custom: {quote(text)}\r\n\r\n".encode())
        accepted.recv(65536)
        kept += (log, client, accepted)
        threading.Thread(target=wait, args=(text, ended, ready), daemon=True).start()
    for _ in texts:
        ready.acquire()
    print(os.getpid(), flush=True)
    sys.stdin.read()
    ended.set()


main()
