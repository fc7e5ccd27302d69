"""The supervisor: privileged, tiny, no socket. Starts each child, starts it again when it ends, introduces them.

Children are exec'ed with closed descriptors, so that a child in an unkillable read keeps neither lock nor socket. Each
has a control channel whose end tells it that the supervisor has gone. Whenever the launcher or the front is started,
both get one end of a new work channel.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from freezeframe.agentd import channel
from freezeframe.agentd.errors import StartError
from freezeframe.agentd.jobs import SUPERVISOR_VARIABLE
from freezeframe.agentd.launcher import INTRODUCTION
from freezeframe.agentd.logs import Logger

LOCK = "agentd.lock"
# A child that fails at once is tried again at this pace; one that ran for a while at once.
_BACK_OFF_S = 0.5
_RAN_FOR_A_WHILE_S = 5.0
_STOP_S = 3.0
# What is registered beside the children's names.
_WOKEN, _INPUT = "", "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """One child: what it is called and how it is started; the control descriptor is appended to the command."""

    name: str
    command: tuple[str, ...]


@dataclass(slots=True)
class _Child:
    spec: ChildSpec
    process: subprocess.Popen[bytes]
    control: socket.socket
    pidfd: int
    started: float


class AlreadyRunningError(StartError):
    """Another agent holds the lock of this runtime directory."""


def lock(runtime_dir: str) -> int:
    """Take the lock of a runtime directory; held until the descriptor is closed. Raises StartError."""
    path = os.path.join(runtime_dir, LOCK)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StartError(f"opening {path}: {error.strerror}", "name another directory with --runtime-dir") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise AlreadyRunningError(
            f"locking {path}: another agent runs there", "use that one, or name another directory with --runtime-dir"
        ) from error
    return descriptor


class Supervisor:
    """Runs the children until it is told to stop."""

    def __init__(self, specs: Sequence[ChildSpec], logger: Logger, *, stop_at_end_of: int | None = None) -> None:
        """`specs` in the order of starting; `stop_at_end_of` is a descriptor whose end stops it, too."""
        self._specs = specs
        self._stop_at_end_of = stop_at_end_of
        self._children: dict[str, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._log = logger
        self._stopping = False

    def run(self) -> None:
        """Supervise until SIGTERM or SIGINT."""
        wake, waker = socket.socketpair()
        waker.setblocking(False)
        signal.set_wakeup_fd(waker.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_stop)
        self._selector.register(wake, selectors.EVENT_READ, _WOKEN)
        if self._stop_at_end_of is not None:
            self._selector.register(self._stop_at_end_of, selectors.EVENT_READ, _INPUT)
        for spec in self._specs:
            self._start(spec)
        self._introduce()
        try:
            while not self._stopping:
                for key, _ in self._selector.select():
                    if key.data == _WOKEN:
                        wake.recv(4096)
                    elif key.data == _INPUT:
                        self._stopping = not os.read(key.fd, 4096)
                    elif not self._stopping:
                        self._restart(key.data)
        finally:
            self._stop()

    def _told_to_stop(self, _number: int, _frame: object) -> None:
        self._stopping = True

    def _start(self, spec: ChildSpec) -> None:
        ours, theirs = channel.pair()
        process = subprocess.Popen(
            [*spec.command, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            # A signal for the supervisor's group is the supervisor's to hand on.
            start_new_session=True,
            env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0", SUPERVISOR_VARIABLE: str(os.getpid())},
        )
        theirs.close()
        child = _Child(spec, process, ours, os.pidfd_open(process.pid), time.monotonic())
        self._children[spec.name] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ, spec.name)
        self._log.info("child started", child=spec.name, pid=process.pid)

    def _introduce(self) -> None:
        ends = channel.pair()
        for end, child in zip(ends, self._children.values(), strict=True):
            with contextlib.suppress(OSError):
                channel.send(child.control, INTRODUCTION, (end.fileno(),))
            end.close()

    def _restart(self, name: str) -> None:
        child = self._children[name]
        self._let_go(child)
        self._log.warning("child ended", child=name, pid=child.process.pid, status=child.process.returncode)
        if time.monotonic() - child.started < _RAN_FOR_A_WHILE_S:
            time.sleep(_BACK_OFF_S)
        if not self._stopping:
            self._start(child.spec)
            self._introduce()

    def _let_go(self, child: _Child) -> None:
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        child.control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(0.5)

    def _stop(self) -> None:
        """End the children, the last started first: front before launcher. Bounded, whatever they do."""
        for child in reversed(list(self._children.values())):
            child.control.close()
            with contextlib.suppress(ProcessLookupError):
                child.process.terminate()
        deadline = time.monotonic() + _STOP_S
        for child in reversed(list(self._children.values())):
            try:
                child.process.wait(max(0.05, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()


def prepare(directory: str, mode: int) -> None:
    """Make a directory of ours with this mode. Raises StartError when it is not ours to use."""
    try:
        os.makedirs(directory, mode=0o755, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            owner = os.fstat(descriptor).st_uid
            if owner != os.geteuid():
                raise StartError(f"using {directory}: it belongs to uid {owner}", "name another directory")
            os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)
    except OSError as error:
        what = "is a link or no directory" if error.errno in {errno.ELOOP, errno.ENOTDIR} else error.strerror
        raise StartError(f"making {directory}: {what}", "name another directory") from error


def module(name: str, *arguments: str) -> tuple[str, ...]:
    """Command of a child that is a module of the agent, run by this interpreter."""
    return (sys.executable, "-m", f"freezeframe.agentd.{name}", *arguments)
