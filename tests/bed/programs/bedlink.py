"""What every program of the bed shares: to die with its parent, and a control channel of its own.

The control channel is a unix socket in the run directory, one JSON line in, one JSON line out, then closed: it never
shows up as serving traffic. In the engine stand-ins it is answered by a thread named ``bed-control``, so that it
works while the event loop or the scheduler is wedged.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; exit at once if `parent` has gone."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def serve_control(path: str, answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer control requests on the unix socket `path` in a daemon thread, for as long as the process lives.

    An exception of `answer` goes back to the caller as ``{"error": "..."}``.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    listener.bind(path)
    listener.listen(16)

    def loop() -> None:
        while True:
            connection, _ = listener.accept()
            with contextlib.suppress(OSError), connection, connection.makefile("rw") as stream:  # who asked may be gone
                try:
                    reply = answer(json.loads(stream.readline()))
                except Exception as error:  # noqa: BLE001 - the caller must hear of anything that goes wrong here
                    reply = {"error": repr(error)}
                stream.write(json.dumps(reply) + "\n")
                stream.flush()

    threading.Thread(target=loop, name="bed-control", daemon=True).start()


def ask(path: str, request: dict[str, Any], *, timeout: float = 5.0) -> dict[str, Any]:
    """Send one control request and return the answer.

    Raises:
        OSError: nobody answers at `path` within `timeout` seconds.
        RuntimeError: the program reports an error.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.settimeout(timeout)
        channel.connect(path)
        with channel.makefile("rw") as stream:
            stream.write(json.dumps(request) + "\n")
            stream.flush()
            line = stream.readline()
    if not line:
        raise ConnectionResetError(f"{path} closed without an answer")
    reply: dict[str, Any] = json.loads(line)
    if "error" in reply:
        raise RuntimeError(f"{path}: {reply['error']}")
    return reply
