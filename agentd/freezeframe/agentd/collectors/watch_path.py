"""watch_path: what triggers are evaluated on, once a second until its deadline. Belongs to no capture.

Asks the recorder for its edges; reads /proc/PID/stat and cgroup.events of the targets, which are the processes of the
serving path, the listeners of their network namespaces over netlink, /proc/pressure, and /dev/kmsg from its end on:
nothing that a stuck process can block. Privilege: that of the recorder, CAP_SYS_PTRACE for the listeners' owners,
CAP_SYS_ADMIN for other namespaces, CAP_SYSLOG for the kernel's log; what is denied is left out.
Cost: some 2 ms a second for ten processes. Cannot see: what the recorder cannot; accept queues of unix sockets.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.collectors.trace_requests import state_of
from freezeframe.agentd.collectors.watch_edges import edges_of
from freezeframe.agentd.host import Host, cgroups, kernel_log, namespaces, procfs, recorder, sock_diag, system
from freezeframe.agentd.host.descriptors import Owners
from freezeframe.agentd.jobs import Job, Target
from freezeframe.judge.model import Host as HostState
from freezeframe.judge.model import KernelEvent, Pressure, Process, Snapshot, Socket

_EVERY_S = 1.0
# Of the job's time; then another worker takes over, with the processes that there are by then.
_SHARE = 0.9
# A recorder that was started again answers a fresh worker only.
_WITHOUT_RECORDER_S = 5.0
_GONE = "X"


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over Edge, Process, Socket (listeners), KernelEvent and Host records every second."""
    until = host.clock.monotonic() + _SHARE * job.deadline_ms / 1000.0
    looks = _Looks(job.targets, host)
    while (begin := host.clock.monotonic()) < until:
        report.doing("looking at the serving path")
        part = looks.take()
        report.part(part)
        if part.recorder is None:
            until = min(until, begin + _WITHOUT_RECORDER_S)
        report.doing("waiting for the second look")
        host.clock.sleep(max(0.0, begin + _EVERY_S - host.clock.monotonic()))


class _Looks:
    """Takes one look a second."""

    def __init__(self, targets: Sequence[Target], host: Host) -> None:
        self._targets = targets
        self._host = host
        self._owners = Owners()
        self._owners.scan(host.proc(), [target.pid for target in targets])
        home = namespaces.namespace_of(host.proc(), "self")
        others = namespaces.namespaces_of(host.proc(), [target.pid for target in targets])
        # Files of the namespaces in which targets listen; empty for our own.
        self._namespaces = {each: "" if each == home else host.proc(pid, "ns/net") for each, pid in others.items()}
        self._log = _open_log(host)
        self._stalled = system.Stalled(host)

    def take(self) -> Snapshot:
        answer = None
        with contextlib.suppress(recorder.RecorderError):
            answer = recorder.ask(self._host.recorder, "edges", timeout_s=_EVERY_S / 2)
        return Snapshot(
            edges=edges_of(answer) if answer is not None else (),
            recorder=state_of(answer.state) if answer is not None else None,
            processes=tuple(self._process(target) for target in self._targets),
            sockets=tuple(self._listeners()),
            kernel_events=self._events(),
            host=HostState(
                pressure=tuple(
                    Pressure(resource=name, some_window=share) for name, share in self._stalled.since().items()
                )
            ),
        )

    def _process(self, target: Target) -> Process:
        try:
            stat = procfs.stat(self._host.proc(target.pid))
            state = stat.state if int(stat.start_ticks) == target.start_ticks else _GONE
            frozen = state != _GONE and self._frozen(target.pid)
        except (procfs.ProcfsError, OSError):
            state, frozen = _GONE, False
        return Process(pid=target.pid, start_ticks=target.start_ticks, role=target.role, state=state, frozen=frozen)

    def _frozen(self, pid: int) -> bool:
        with contextlib.suppress(procfs.ProcfsError, OSError):
            return cgroups.is_frozen(self._host, cgroups.parse_cgroup(procfs.cgroup(self._host.proc(pid))))
        return False

    def _listeners(self) -> Iterator[Socket]:
        for path in self._namespaces.values():
            with contextlib.suppress(sock_diag.SockDiagError):
                for each in sock_diag.tcp_sockets(path, info=False, listening=True):
                    owners = self._owners.of(each.inode)
                    if owners:
                        yield Socket(
                            family="tcp",
                            state=each.state,
                            local=each.local,
                            pid=owners[0][0],
                            backlog=each.receive_queue,
                        )

    def _events(self) -> tuple[KernelEvent, ...]:
        if self._log is None:
            return ()
        try:
            records = kernel_log.drain(self._log).records
        except OSError:
            return ()
        return tuple(
            KernelEvent(kind=event.kind, text=event.text, code=event.code, device=event.device)
            for _, event in kernel_log.find_events(records)
        )


def _open_log(host: Host) -> int | None:
    """Open the kernel's log at its end; None where that is not allowed."""
    with contextlib.suppress(OSError):
        descriptor = os.open(str(host.root / "dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(descriptor, 0, os.SEEK_END)
        return descriptor
    return None


WATCH_PATH = Collector(
    name="watch_path",
    tier=Tier.LOCK_FREE,
    collect=collect,
    asks_recorder=True,
    resident=True,
)
