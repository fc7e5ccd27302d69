"""Kernel stacks of threads: read by this process where it may, else what the helper opens (`agentd.kernel_stacks`)."""

from __future__ import annotations

import os
import socket
import struct

from freezeframe.agentd.host import Host, procfs

_QUESTION = struct.Struct("=II")
_ANSWER = struct.Struct("=I")
_CREDENTIALS = struct.Struct("=iII")
_TIMEOUT_S = 1.0
# Frames of a kernel stack, 64 at most, in text.
_STACK_BYTES = 65536
HINT = "systemctl enable --now freezeframe-kernel-stacks, or grant CAP_SYS_ADMIN"


class KernelStacks:
    """One worker's way to them."""

    def __init__(self, host: Host) -> None:
        """Nothing is asked before it is needed."""
        self._host = host
        self._denied = False
        self._helper: socket.socket | None = None
        self._asked = False

    def read(self, pid: int, tid: int) -> tuple[str, ...]:
        """Read one, innermost first: "futex_wait+0x6f/0x110". Raises ProcfsError."""
        directory = self._host.proc(pid, "task", tid)
        if not self._denied:
            try:
                return procfs.kernel_stack(directory)
            except procfs.DeniedError:
                # The capability is ours, not the target's: from now on the helper opens them, where there is one.
                if self._reach() is None:
                    raise
                self._denied = True
        return self._read_opened(pid, tid, f"{directory}/stack")

    def _reach(self) -> socket.socket | None:
        """Give the connection to the helper; None where there is none, or where another user's program listens."""
        if self._asked or not self._host.kernel_stacks:
            return self._helper
        self._asked = True
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.settimeout(_TIMEOUT_S)
            connection.connect(self._host.kernel_stacks)
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if _CREDENTIALS.unpack(peer)[1] in {0, os.geteuid()}:
                self._helper = connection
        except OSError:
            pass
        if self._helper is None:
            connection.close()
        return self._helper

    def _read_opened(self, pid: int, tid: int, path: str) -> tuple[str, ...]:
        denied = procfs.DeniedError(f"reading {path}: the helper for kernel stacks does not answer", HINT)
        if self._helper is None:
            raise denied
        try:
            self._helper.send(_QUESTION.pack(pid, tid))
            data, descriptors, _, _ = socket.recv_fds(self._helper, _ANSWER.size, 1)
        except OSError as error:
            self._leave()
            raise denied from error
        if len(data) != _ANSWER.size:
            self._leave()
            raise denied
        (code,) = _ANSWER.unpack(data)
        if not descriptors:
            raise procfs.translated(OSError(code, os.strerror(code)), path)
        try:
            return procfs.parse_kernel_stack(os.read(descriptors[0], _STACK_BYTES))
        except OSError as error:
            raise procfs.translated(error, path) from error
        finally:
            os.close(descriptors[0])

    def _leave(self) -> None:
        if self._helper is not None:
            self._helper.close()
            self._helper = None
