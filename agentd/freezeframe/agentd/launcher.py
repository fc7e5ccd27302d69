"""The launcher: forks workers from a warm image, so that nothing needs to be loaded while the host is stuck.

Imports every collector and never grpc. Has one thread, reads nothing of a target, waits for no child: what it forks it
watches through SIGCHLD, and what does not die it leaves behind and counts.

Messages (see `channel`): "peer" on the control channel brings the work channel, again for each new front; "recorder"
brings the one to the recorder, over which a worker that wants it gets an end of a socketpair of its own.

    front -> launcher   start {job, collector} + slot, pipe
                        kill {job, targets}: the targets, "4711,4712", it was stuck on
    launcher -> front   started {job, pid}   refused {job, why}   exited {job, pid, status}
                        gone {job, pid}: the worker and its helpers have ended
                        abandoned {collector, tier, targets, pid}: one of a former front's that still lives
    launcher -> recorder  ask + socket: whoever holds the other end may ask (see recorder.service)
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from freezeframe.agentd import config as configuration
from freezeframe.agentd import worker
from freezeframe.agentd.channel import Channel, Message, encode, pair
from freezeframe.agentd.collectors import COLLECTORS, run_hook
from freezeframe.agentd.collectors.contract import Collector
from freezeframe.agentd.errors import StartError
from freezeframe.agentd.groups import become_subreaper, group_lives
from freezeframe.agentd.host import Host
from freezeframe.agentd.worker import WorkerLimits

_START_DESCRIPTORS = 2
# What is left when the agent ends gets this long, seconds, between SIGKILL and our own exit.
_LAST_WAIT_S = 0.2


@dataclass(slots=True, kw_only=True)
class _Worker:
    pid: int
    collector: Collector
    # Of the current front; 0 = of a former one.
    job: int
    # The targets it was killed over, "4711,4712".
    targets: str = ""
    exited: bool = False


class Launcher:
    """State and message handling; `run` drives it."""

    def __init__(self, control: Channel, collectors: Sequence[Collector], host: Host, limits: WorkerLimits) -> None:
        """Keep what workers are made of."""
        self._control = control
        self._collectors = {collector.name: collector for collector in collectors}
        self._host = host
        self._limits = limits
        self._work: Channel | None = None
        self._recorder: Channel | None = None
        self._workers: dict[int, _Worker] = {}

    def run(self) -> None:
        """Serve until the control channel ends."""
        become_subreaper()
        wakeup, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: self._control.close())
        while not self._control.closed:
            self._wait(wakeup)
            with suppress(BlockingIOError):
                os.read(wakeup, 4096)
            self._reap()
            self._follow_control()
            self._follow_work()
            self._follow_recorder()
        self._kill_all()
        self._reap_until_gone(wakeup)

    def _wait(self, wakeup: int) -> None:
        poll = select.poll()
        poll.register(wakeup, select.POLLIN)
        for channel in (self._control, self._work, self._recorder):
            if channel is not None and not channel.closed:
                poll.register(channel, select.POLLIN | (select.POLLOUT if channel.wants_write else 0))
        poll.poll()

    def _follow_control(self) -> None:
        for message in self._control.receive():
            if message.op == "peer" and len(message.descriptors) == 1:
                self._meet(Channel(socket.socket(fileno=message.descriptors[0])))
            elif message.op == "recorder" and len(message.descriptors) == 1:
                if self._recorder is not None:
                    self._recorder.close()
                self._recorder = Channel(socket.socket(fileno=message.descriptors[0]))
            else:
                message.close()

    def _meet(self, work: Channel) -> None:
        """Take the work socket of a new front: what the former one had running goes."""
        self._leave_front()
        self._work = work
        for each in self._workers.values():
            tier = each.collector.tier.value
            self._tell("abandoned", collector=each.collector.name, tier=tier, targets=each.targets, pid=each.pid)

    def _leave_front(self) -> None:
        if self._work is not None:
            self._work.close()
            self._work = None
        self._kill_all()
        for each in self._workers.values():
            each.job = 0

    def _follow_work(self) -> None:
        if self._work is None:
            return
        self._work.flush()
        for message in self._work.receive():
            if message.op == "start":
                self._start(message)
            elif message.op == "kill":
                self._kill(message)
            message.close()
        if self._work.closed:
            self._leave_front()

    def _follow_recorder(self) -> None:
        """It tells nothing; only its end is to be seen."""
        if self._recorder is None:
            return
        for message in self._recorder.receive():
            message.close()
        if self._recorder.closed:
            self._recorder.close()
            self._recorder = None

    def _reach_recorder(self) -> socket.socket | None:
        """Give a socket of which the recorder has the other end; None when there is no recorder."""
        if self._recorder is None:
            return None
        ours, theirs = pair()
        with theirs:
            if self._recorder.send(encode("ask"), (theirs.fileno(),)):
                return ours
        ours.close()
        return None

    def _start(self, message: Message) -> None:
        job = message.number("job")
        collector = self._collectors.get(message.text("collector"))
        if collector is None or len(message.descriptors) != _START_DESCRIPTORS:
            self._tell("refused", job=job, why=f"no collector is named {message.text('collector')!r}")
            return
        slot, pipe = message.descriptors
        parent = os.getpid()
        asker = self._reach_recorder() if collector.asks_recorder else None
        recorder = None if asker is None else asker.fileno()
        try:
            pid = os.fork()
        except OSError as error:
            self._tell("refused", job=job, why=f"starting a worker: {error.strerror}")
            return
        finally:
            if asker is not None and os.getpid() == parent:
                asker.close()
        if pid == 0:
            worker.run(collector, pipe, slot, recorder, host=self._host, limits=self._limits, parent=parent)
        # Both sides do it, so that it is done before either goes on; the child may be dead already.
        with suppress(OSError):
            os.setpgid(pid, pid)
        self._workers[pid] = _Worker(pid=pid, collector=collector, job=job)
        self._tell("started", job=job, pid=pid)

    def _kill(self, message: Message) -> None:
        for each in self._workers.values():
            if each.job == message.number("job"):
                each.targets = message.text("targets")
                _signal(each)

    def _kill_all(self) -> None:
        for each in self._workers.values():
            _signal(each)

    def _reap(self) -> None:
        """Collect every child that ended, orphaned helpers included; never waits."""
        while True:
            try:
                child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            if child is None:
                break
            ended = self._workers.get(child.si_pid)
            if ended is not None:
                # Its helper programs end with it; now, since an unreaped process keeps the number of its group.
                _signal(ended)
                ended.exited = True
            _, status = os.waitpid(child.si_pid, 0)
            if ended is not None and ended.job:
                self._tell("exited", job=ended.job, pid=ended.pid, status=status)
        for each in [each for each in self._workers.values() if each.exited and not group_lives(each.pid)]:
            del self._workers[each.pid]
            self._tell("gone", job=each.job, pid=each.pid)

    def _reap_until_gone(self, wakeup: int) -> None:
        self._reap()
        if self._workers:
            select.select([wakeup], [], [], _LAST_WAIT_S)
            self._reap()

    def _tell(self, op: str, **fields: int | str) -> None:
        if self._work is not None:
            self._work.send(encode(op, **fields))


def _signal(each: _Worker) -> None:
    # Once reaped its number may be another's.
    if not each.exited:
        with suppress(ProcessLookupError):
            os.killpg(each.pid, signal.SIGTERM if each.collector.in_gpu_driver else signal.SIGKILL)


def with_hooks(collectors: Sequence[Collector], path: str | None) -> tuple[Collector, ...]:
    """The collectors, `run_hook` with the hooks of the configuration file: the front names them, no more."""
    try:
        hooks = configuration.in_force(path).hooks
    except StartError:
        # The front says so.
        hooks = ()
    return tuple(run_hook.of(hooks) if each.name == run_hook.RUN_HOOK.name else each for each in collectors)


def host_of(state_dir: str, path: str | None = None) -> Host:
    """Give the host as the configuration file has it for workers."""
    try:
        return Host(state_dir=state_dir, kernel_stacks=configuration.in_force(path).kernel_stacks)
    except StartError:
        # The front says so.
        return Host(state_dir=state_dir)


def main(
    control: int,
    collectors: Sequence[Collector] = COLLECTORS,
    limits: WorkerLimits | None = None,
    host: Host = Host(),  # noqa: B008 - frozen
) -> None:
    """Be the launcher over these collectors until the control channel, an inherited descriptor, ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.set_inheritable(control, False)
    worker.warm()
    # What is loaded by now stays shared with every worker: no collection copies its pages.
    gc.collect()
    gc.freeze()
    Launcher(Channel(socket.socket(fileno=control)), collectors, host, limits or WorkerLimits()).run()


if __name__ == "__main__":
    # [state directory [configuration file]] control descriptor
    _options = sys.argv[1:-1]
    main(
        int(sys.argv[-1]),
        collectors=with_hooks(COLLECTORS, _options[1] if len(_options) > 1 else None),
        host=host_of(*_options) if _options else Host(),
    )
