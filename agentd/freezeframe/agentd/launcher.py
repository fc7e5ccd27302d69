"""The launcher: imports every collector once, never grpc, and forks a worker for each job.

Started before the front and before trouble, so that nothing needs to be loaded from a disk that may be dead by then.
Channels (see `channel`): `control` from the supervisor brings a new `work` channel each time the front is started
anew; `work` brings jobs (with the write end of a pipe and a memfd) and requests to kill one.

    front -> launcher   b"J" + job id, descriptors: pipe, memfd of an encoded Job
                        b"K" + job id: kill its worker (it may not die; nobody waits for it)
    launcher -> front   b"S" + job id + " " + pid, descriptor: pidfd of the worker
                        b"R" + job id + " " + why: refused
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from freezeframe.agentd import channel, worker
from freezeframe.agentd.collectors import COLLECTORS
from freezeframe.agentd.collectors.contract import Collector
from freezeframe.agentd.host import Host
from freezeframe.agentd.jobs import Job

INTRODUCTION = b"work"


class Launcher:
    """One launcher; `run` returns when the supervisor has gone."""

    def __init__(self, control: socket.socket, collectors: Sequence[Collector], host: Host) -> None:
        """`control` is the supervisor's channel, or the front's own when it has no supervisor."""
        self._control = control
        self._collectors = {collector.name: collector for collector in collectors}
        self._host = host
        self._work: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self._workers: dict[int, tuple[int, int]] = {}  # job id -> (pid, pidfd)

    def run(self) -> None:
        """Serve until the control channel ends, then kill the workers that can be killed."""
        self._selector.register(self._control, selectors.EVENT_READ, self._introduced)
        try:
            while self._control.fileno() >= 0:
                for key, _ in self._selector.select():
                    handle: Callable[[], None] = key.data
                    handle()
        finally:
            for job_id in list(self._workers):
                self._kill(job_id)

    def _introduced(self) -> None:
        try:
            message, descriptors = channel.receive(self._control)
        except OSError:
            message, descriptors = b"", []
        if not message:
            self._selector.unregister(self._control)
            self._control.close()
            return
        if message != INTRODUCTION or len(descriptors) != 1:
            channel.close_all(descriptors)
            return
        self._drop_work()
        self._work = socket.socket(fileno=descriptors[0])
        self._selector.register(self._work, selectors.EVENT_READ, self._asked)

    def _drop_work(self) -> None:
        """The front has gone: nobody reads what its workers bring."""
        if self._work is not None:
            self._selector.unregister(self._work)
            self._work.close()
            self._work = None
        for job_id in list(self._workers):
            self._kill(job_id)

    def _asked(self) -> None:
        assert self._work is not None  # noqa: S101 - for the type checker
        try:
            message, descriptors = channel.receive(self._work)
        except OSError:
            message, descriptors = b"", []
        if not message:
            self._drop_work()
            return
        try:
            job_id = int(message[1:])
        except ValueError:
            channel.close_all(descriptors)
            return
        if message[:1] == b"K":
            self._kill(job_id)
        elif message[:1] == b"J" and len(descriptors) == 2:  # noqa: PLR2004 - pipe and memfd
            self._launch(job_id, *descriptors)
        else:
            channel.close_all(descriptors)

    def _launch(self, job_id: int, pipe: int, memory: int) -> None:
        try:
            job = Job.decode(channel.read_blob(memory))
            collector = self._collectors[job.collector]
            pid = os.fork()
        except KeyError as error:
            self._answer(f"R{job_id} there is no collector {error}")
        except (OSError, ValueError) as error:
            self._answer(f"R{job_id} {error}")
        else:
            if pid == 0:
                self._in_child(collector, job, pipe)
            pidfd = os.pidfd_open(pid)
            self._workers[job_id] = (pid, pidfd)
            self._selector.register(pidfd, selectors.EVENT_READ, lambda: self._ended(job_id))
            self._answer(f"S{job_id} {pid}", (pidfd,))
        finally:
            os.close(memory)
            os.close(pipe)

    def _in_child(self, collector: Collector, job: Job, pipe: int) -> NoReturn:
        try:
            for other in [self._control, *filter(None, (self._work,))]:
                other.close()
            self._selector.close()
            for _, pidfd in self._workers.values():
                os.close(pidfd)
            worker.run(collector, job, self._host, pipe)
        finally:
            os._exit(0)

    def _ended(self, job_id: int) -> None:
        pid, pidfd = self._workers.pop(job_id)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)

    def _kill(self, job_id: int) -> None:
        found = self._workers.get(job_id)
        if found is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(found[1], signal.SIGKILL)

    def _answer(self, text: str, descriptors: tuple[int, ...] = ()) -> None:
        if self._work is not None:
            with contextlib.suppress(OSError):
                channel.send(self._work, text.encode()[:4000], descriptors)


def main(control: int, collectors: Sequence[Collector] = COLLECTORS) -> None:
    """Entry of the launcher's process; `control` is an inherited descriptor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A child touches as few pages of the warm image as can be.
    gc.freeze()
    Launcher(socket.socket(fileno=control), collectors, Host()).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
