"""The supervisor: privileged, tiny, no socket. Starts each child, starts it again when it ends, introduces them.

Children are exec'ed with closed descriptors, so that a child in an unkillable read keeps neither lock nor socket. Each
has a control channel whose end tells it that the supervisor has gone. Whenever one of two that work together is
started, both get one end of a new channel. Nothing here waits for a child, or for a disk that a child is started from.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from freezeframe.agentd import channel
from freezeframe.agentd.channel import INTRODUCTION, RECORDER_INTRODUCTION, Channel
from freezeframe.agentd.errors import StartError
from freezeframe.agentd.groups import become_subreaper
from freezeframe.agentd.jobs import SUPERVISOR_VARIABLE
from freezeframe.agentd.logs import Logger

LOCK = "agentd.lock"
# Children that get a channel to each other, by name, and what introduces them.
_PEERS = ((("launcher", "front"), INTRODUCTION), (("launcher", "recorder"), RECORDER_INTRODUCTION))
# Descriptor of a child's control channel.
_CONTROL_FD = 3
# A child that ended is started again at once, one that ends again and again after twice the pause each time.
_BACK_OFF_S = (0.0, 0.1, 0.2, 0.4, 0.8, 1.0)
_RAN_FOR_A_WHILE_S = 5.0
# How long each child has to end when it is told to.
_STOP_S = 4.0
# Variables that change what a program loads: children run as root.
_UNSAFE = ("LD_", "PYTHON", "GLIBC_", "MALLOC_", "GCONV_")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSpec:
    """One child: what it is called and how it is started; the control descriptor is appended to the command."""

    name: str
    command: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Child:
    spec: ChildSpec
    # 0 while it is not running.
    pid: int = 0
    control: Channel | None = None
    # Of the last start, monotonic.
    started: float = 0.0
    # When it is to be started; it does not run then.
    due: float = 0.0
    # Ends in a row, each soon after the start.
    failures: int = 0


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
        self._children = {spec.name: _Child(spec=spec) for spec in specs}
        self._stop_at_end_of = stop_at_end_of
        self._log = logger
        self._stopping = False

    def run(self) -> None:
        """Supervise until SIGTERM or SIGINT."""
        become_subreaper()
        wakeup, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._told_to_stop)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        try:
            while not self._stopping:
                self._start_due()
                self._wait(wakeup, self._next_due())
                self._reap()
                self._let_go_of_the_silent()
        finally:
            self._stop(wakeup)

    def _told_to_stop(self, _number: int, _frame: object) -> None:
        self._stopping = True

    def _next_due(self) -> float | None:
        return min((child.due for child in self._children.values() if not child.pid), default=None)

    def _wait(self, wakeup: int, until: float | None) -> None:
        """Wait for a signal, the end of a channel, or a moment on the monotonic clock."""
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        if not self._stopping:
            for child in self._children.values():
                if child.control is not None:
                    poll.register(child.control, select.POLLIN)
            if self._stop_at_end_of is not None:
                poll.register(self._stop_at_end_of, select.POLLIN)
        ready = poll.poll(None if until is None else max(0.0, until - time.monotonic()) * 1000)
        with suppress(BlockingIOError):
            os.read(wakeup, 4096)
        for descriptor, _ in ready:
            if descriptor == self._stop_at_end_of and not os.read(descriptor, 4096):
                self._stopping = True

    def _start_due(self) -> None:
        started = set()
        for child in self._children.values():
            if not child.pid and child.due <= time.monotonic():
                self._start(child)
                started.add(child.spec.name)
        for names, introduction in _PEERS:
            if started.intersection(names):
                self._introduce(introduction, *(self._children.get(name) for name in names))

    def _start(self, child: _Child) -> None:
        ours, theirs = channel.pair()
        command = (*child.spec.command, str(_CONTROL_FD))
        environment = child_environment(os.environ, os.getpid())
        try:
            pid = _fork()
        except OSError as error:
            self._log.error("starting a child", child=child.spec.name, error=error.strerror)
            ours.close()
            theirs.close()
            child.failures += 1
            child.due = time.monotonic() + _back_off(child.failures)
            return
        if pid == 0:
            _exec(command, theirs.fileno(), environment)
        theirs.close()
        child.pid, child.control, child.started = pid, Channel(ours), time.monotonic()
        self._log.info("child started", child=child.spec.name, pid=pid)

    def _introduce(self, introduction: bytes, *children: _Child | None) -> None:
        controls = [child.control for child in children if child is not None and child.control is not None]
        if len(controls) == len(children):
            for control, end in zip(controls, channel.pair(), strict=True):
                control.send(introduction, (end.fileno(),))
                end.close()

    def _reap(self) -> None:
        """Collect every child that ended, orphans of the launcher included; never waits."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self._children.values():
                if child.pid == pid:
                    self._ended(child, os.waitstatus_to_exitcode(status))

    def _let_go_of_the_silent(self) -> None:
        """A child that closed its channel can be told nothing any more: another one takes its place."""
        for child in self._children.values():
            if child.control is not None:
                child.control.receive()
                if child.control.closed:
                    # Reaped when it ends; not waited for.
                    with suppress(ProcessLookupError):
                        os.kill(child.pid, signal.SIGKILL)
                    self._ended(child, None)

    def _ended(self, child: _Child, status: int | None) -> None:
        if child.control is not None:
            child.control.close()
        soon = time.monotonic() - child.started < _RAN_FOR_A_WHILE_S
        if not self._stopping:
            self._log.warning("child ended", child=child.spec.name, pid=child.pid, status=status)
        child.due = time.monotonic() + _back_off(child.failures)
        child.failures = child.failures + 1 if soon else 0
        child.pid, child.control = 0, None

    def _stop(self, wakeup: int) -> None:
        """End the children, the last started first: front before launcher. Bounded, whatever they do."""
        self._stopping = True
        for child in reversed(list(self._children.values())):
            if not child.pid:
                continue
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM)
            deadline = time.monotonic() + _STOP_S
            while child.pid and time.monotonic() < deadline:
                self._wait(wakeup, deadline)
                self._reap()
            if child.pid:
                self._log.warning("child killed", child=child.spec.name, pid=child.pid)
                with suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)


def _back_off(failures: int) -> float:
    return _BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)]


def _fork() -> int:
    """Fork: unlike vfork, which subprocess and posix_spawn use, it does not hang with an exec from a dead disk."""
    with warnings.catch_warnings():
        # Of a fork beside a thread, the one that writes the log: the child execs at once.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _exec(command: Sequence[str], control: int, environment: Mapping[str, str]) -> NoReturn:
    """Be the child: keep standard output and error and the control channel, nothing else."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        # A signal for the supervisor's group is the supervisor's to hand on.
        os.setsid()
        # -m puts the current directory on the path of modules.
        os.chdir("/")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(os.dup(control), _CONTROL_FD)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > _CONTROL_FD:
                with suppress(OSError):
                    os.close(int(name))
        os.execve(command[0], list(command), dict(environment))  # noqa: S606 - that is the point
    finally:
        os._exit(127)


def child_environment(environment: Mapping[str, str], supervisor: int) -> dict[str, str]:
    """Give the environment of a child: without what changes which code a program loads.

    So a source checkout is run from an editable install, not through PYTHONPATH.
    """
    kept = {name: value for name, value in environment.items() if not name.startswith(_UNSAFE)}
    return {**kept, "GRPC_ENABLE_FORK_SUPPORT": "0", SUPERVISOR_VARIABLE: str(supervisor)}


def prepare(directory: str, mode: int) -> None:
    """Make a directory of ours with this mode; one that is there keeps its own, as it may be everybody's (/tmp).

    Raises StartError when it is not ours to use.
    """
    made = False
    try:
        os.makedirs(os.path.dirname(directory), mode=0o755, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(directory, mode)
            made = True
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(descriptor)
            if found.st_uid != os.geteuid():
                raise StartError(f"using {directory}: it belongs to uid {found.st_uid}", "name another directory")
            if made:
                # Whatever the umask.
                os.fchmod(descriptor, mode)
            elif found.st_mode & 0o022:
                raise StartError(
                    f"using {directory}: others may write in it, and put a socket of theirs in place of ours",
                    f"name another directory, or, where it is the agent's own: chmod {mode:o} {directory}",
                )
        finally:
            os.close(descriptor)
    except OSError as error:
        what = "is a link or no directory" if error.errno in {errno.ELOOP, errno.ENOTDIR} else error.strerror
        raise StartError(f"making {directory}: {what}", "name another directory") from error


def module(name: str, *arguments: str) -> tuple[str, ...]:
    """Command of a child that is a module of the agent, run by this interpreter."""
    return (sys.executable, "-m", f"freezeframe.agentd.{name}", *arguments)
