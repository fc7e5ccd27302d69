"""Opens kernel stacks of threads for workers: a process apart, the only one with CAP_SYS_ADMIN where it runs.

The kernel asks for CAP_SYS_ADMIN where /proc/PID/task/TID/stack is opened, and for CAP_SYS_PTRACE where it is read. So
this process opens and hands the descriptor over, and the worker reads: nothing here waits for a target, sees what it
holds, or takes a path. It is started by a unit of its own, freezeframe-kernel-stacks.service, where that is wanted, as
`python -I -m freezeframe.agentd.kernel_stacks SOCKET`; the directory of the socket is the agent's alone.

A question is the numbers of a process and of a thread of it; the answer an errno, with the descriptor where it is 0
(`host.kernel_stacks` asks). Imports the standard library alone.
"""

from __future__ import annotations

import errno
import os
import selectors
import signal
import socket
import struct
import sys
from contextlib import suppress

_QUESTION = struct.Struct("=II")
_ANSWER = struct.Struct("=I")
_CREDENTIALS = struct.Struct("=iII")
# More than the workers of one capture.
_CONNECTIONS = 32


def serve(listener: socket.socket) -> None:
    """Answer until the process is told to end."""
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    _accept(listener, selector)
                elif isinstance(key.fileobj, socket.socket) and not _answer(key.fileobj):
                    selector.unregister(key.fileobj)
                    key.fileobj.close()


def _accept(listener: socket.socket, selector: selectors.BaseSelector) -> None:
    try:
        connection, _ = listener.accept()
    except OSError:
        return
    uid = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
    if uid not in {0, os.geteuid()} or len(selector.get_map()) > _CONNECTIONS:
        connection.close()
        return
    connection.setblocking(False)
    selector.register(connection, selectors.EVENT_READ)


def _answer(connection: socket.socket) -> bool:
    """Answer one question; False when the connection is to be closed: it ended, or is none of ours."""
    try:
        question = connection.recv(_QUESTION.size + 1)
        if len(question) != _QUESTION.size:
            return False
        pid, tid = _QUESTION.unpack(question)
        try:
            opened = os.open(f"/proc/{pid}/task/{tid}/stack", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            connection.send(_ANSWER.pack(error.errno or errno.EIO))
            return True
        try:
            socket.send_fds(connection, [_ANSWER.pack(0)], [opened])
        finally:
            os.close(opened)
    except OSError:
        # Whoever asks takes one answer after the other.
        return False
    return True


def main(path: str) -> None:
    """Listen on a unix socket that nobody else may use, until SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.umask(0o177)
    aside = f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(aside)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(aside)
        listener.listen(_CONNECTIONS)
        # Who sees it can use it.
        os.rename(aside, path)
        listener.setblocking(False)
        serve(listener)


if __name__ == "__main__":
    main(sys.argv[1])
