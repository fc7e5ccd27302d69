"""snapshot_sockets: TCP and unix-stream sockets of the targets and of whoever is at the other end, owners on both ends.

Reads: sock_diag over netlink (no process is touched) in the network namespaces of the targets, and of all others of
this host while a connection of a target leads out of these; then /proc/PID/net/nf_conntrack, which joins the two ends
of a connection through a published port; /proc/PID/fd of the targets, and of all other processes only while an end of a
connection has no owner yet. Privilege: CAP_SYS_PTRACE for the descriptors of other users, CAP_SYS_ADMIN for other
namespaces (without it /proc/PID/net/tcp: no ages, no byte counts), CAP_DAC_READ_SEARCH for nf_conntrack.
Cost: 10 microseconds per socket of a namespace and 20 per record, each look; 4 per descriptor scanned.

Which processes: the targets, and all that is connected to them. Of a client only its connections to them are brought; a
client that itself serves others (a proxy, a gateway) brings all of its own, so do the servers that targets use, and so
on through `_ROUNDS` processes. The agent's own connections are left out, also from a listener's backlog.

Cannot see: what TLS or HTTP/2 carry, how much of an answer is still to come, TIME-WAIT, the other end of a connection
through a translation that another host made, or eBPF. `opened_age_ms` is known only while one direction has carried no
byte; a retransmission makes `last_out_age_ms` young, `last_ack_age_ms` it does not.
Two looks: the first is handed over at once and the targets are reported done; ages are those of the last look. All that
a connection has carried when it is new at the second look was carried in the window.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TypeVar

from freezeframe.agentd.collectors.contract import Collector, Report, Tier, UnavailableError
from freezeframe.agentd.host import Host, conntrack, namespaces
from freezeframe.agentd.host.descriptors import Owners
from freezeframe.agentd.host.sock_diag import SockDiagError
from freezeframe.agentd.host.socket_graph import Graph
from freezeframe.agentd.host.socket_records import Records
from freezeframe.agentd.jobs import SUPERVISOR_VARIABLE, Job
from freezeframe.judge.model import Snapshot, Socket

# Processes from a target to the last one whose own connections are all brought: gateway, proxy, and one to spare.
_ROUNDS = 4
# Namespaces that are searched for the other ends of connections.
_NAMESPACES = 256
# Records in one part.
_BATCH = 1000


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over Socket records; see the module docstring."""
    looks = _Looks(job, host, report)
    begin = host.clock.monotonic()
    first = looks.take(lasting=not job.window_ms)
    _hand_over(report, first)
    for target in job.targets:
        report.done(target.pid)
    if job.window_ms:
        report.doing(f"waiting {job.window_ms:.0f} ms for the second look")
        # The kernel is asked as a look begins: from one begin to the other it is the window, as rates assume.
        host.clock.sleep(max(0.0, begin + job.window_ms / 1000.0 - host.clock.monotonic()))
        _hand_over(report, _compare(first, looks.take(lasting=False)))


class _Looks:
    """Takes looks at the sockets; remembers between them who owns what."""

    def __init__(self, job: Job, host: Host, report: Report) -> None:
        self._proc = host.proc()
        self._report = report
        self._cap = job.caps.sockets
        self._owners = Owners()
        self._own = _agent_pids(self._proc)
        self._targets = {target.pid for target in job.targets}
        # Processes at the ends, of the look before.
        self._known: set[int] = set()
        # Sockets that no process on this host has open, although all were asked.
        self._unowned: set[int] = set()
        # Namespace -> a process in it; None for the agent's own.
        self._home = namespaces.namespace_of(self._proc, "self")
        others = namespaces.namespaces_of(self._proc, sorted(self._targets))
        self._namespaces: dict[int, int | None] = {self._home: None, **others, self._home: None}
        self._searched = False
        self._told: set[str] = set()

    def take(self, *, lasting: bool) -> list[Socket]:
        self._report.doing("asking the kernel for TCP and unix sockets")
        graph = Graph()
        for namespace, pid in self._namespaces.items():
            self._read(graph, namespace, pid)
        self._report.doing("reading descriptors of the targets")
        self._owners.scan(self._proc, self._targets | self._known)
        inodes = [inode for pid in self._targets for inode in self._owners.inodes(pid)]
        if not self._searched and next(graph.open_ends(inodes), None) is not None:
            self._search_namespaces(graph)
        if next(graph.open_ends(inodes), None) is not None:
            self._translate(graph, inodes)
        whole, ends = self._closure(graph)
        self._known = whole | ends
        if denied := sorted(self._owners.denied & whole):
            self._tell(
                f"reading descriptors of pid {', '.join(map(str, denied[:8]))}: permission denied",
                "run the agent as root or grant CAP_SYS_PTRACE",
            )
        records = list(Records(graph, self._owners, whole, self._own).all(lasting=lasting))
        if len(records) > self._cap:
            records.sort(key=lambda one: one.pid not in self._targets and one.peer_pid not in self._targets)
            self._tell(f"{len(records) - self._cap} of {len(records)} sockets left out", "")
            del records[self._cap :]
        return records

    def _read(self, graph: Graph, namespace: int, pid: int | None) -> None:
        try:
            found = namespaces.sockets_of(self._proc, pid)
        except SockDiagError as error:
            if pid is None:
                hint = "load tcp_diag and unix_diag: modprobe -a tcp_diag unix_diag"
                raise UnavailableError(str(error), hint) from error
            self._tell(f"network namespace {namespace} of pid {pid}: {error}", "grant CAP_SYS_ADMIN")
            return
        if found.coarse:
            self._tell(
                f"network namespace {namespace} of pid {pid}: no ages, bytes and unix sockets: {found.coarse}",
                "grant CAP_SYS_ADMIN",
            )
        graph.add(namespace, found)

    def _closure(self, graph: Graph) -> tuple[set[int], set[int]]:
        """Processes of which all sockets are brought, and all of which at least those that lead to these."""
        whole, ends = set(self._targets), set(self._targets)
        # Whoever connects to these is looked for, and whom these connect to.
        served, using = set(self._targets), set(self._targets)
        for _ in range(_ROUNDS):
            inodes = (
                {inode for pid in served for inode in graph.clients(self._owners.inodes(pid))},
                {inode for pid in using for inode in graph.servers(self._owners.inodes(pid))},
                {inode for pid in served for inode in graph.unix_peers(self._owners.inodes(pid))},
            )
            self._find_owners(set().union(*inodes))
            clients, servers, others = (
                {pid for inode in kind for pid, _ in self._owners.of(inode)} - self._own for kind in inodes
            )
            ends |= clients | servers | others
            served = {pid for pid in clients - whole if graph.serves(self._owners.inodes(pid))}
            using = servers - whole
            if not (served or using):
                break
            whole |= served | using
        return whole, ends

    def _find_owners(self, inodes: set[int]) -> None:
        """Have every process asked for its descriptors, unless all these have owners or are known to have none."""
        if all(self._owners.of(inode) or inode in self._unowned for inode in inodes):
            return
        self._report.doing("reading descriptors of all processes for the other ends")
        everybody = [int(name) for name in os.listdir(self._proc) if name.isdecimal()]
        self._owners.scan(self._proc, everybody)
        self._unowned |= {inode for inode in inodes if not self._owners.of(inode)}

    def _search_namespaces(self, graph: Graph) -> None:
        """Read the other namespaces of this host, once: the other end of a connection may be in a container."""
        self._searched = True
        found = namespaces.namespaces_of(self._proc, (int(name) for name in os.listdir(self._proc) if name.isdecimal()))
        if len(found) > _NAMESPACES:
            self._tell(f"{_NAMESPACES} of {len(found)} network namespaces were searched for other ends", "")
        for namespace, pid in list(found.items())[:_NAMESPACES]:
            if namespace not in self._namespaces:
                self._namespaces[namespace] = pid
                self._read(graph, namespace, pid)

    def _translate(self, graph: Graph, inodes: list[int]) -> None:
        """Join what leads through published ports, as the connection tracking of these namespaces has it."""
        self._report.doing("reading connection tracking")
        missing = []
        for pid in self._namespaces.values():
            found = conntrack.translations(self._proc, "self" if pid is None else pid)
            graph.translate(found.other_end)
            missing += [found.missing] if found.missing else []
        # An end that another host has is open in any case.
        here = graph.addresses()
        inside = [one for one in graph.open_ends(inodes) if one.remote.rpartition(":")[0] in here]
        if missing and inside:
            self._tell(
                f"the other end of {len(inside)} connections may be behind a published port: {missing[0]}",
                "run the agent as root or grant CAP_DAC_READ_SEARCH" if "denied" in missing[0] else "",
            )

    def _tell(self, detail: str, hint: str) -> None:
        """Say once what is missing."""
        if detail not in self._told:
            self._told.add(detail)
            self._report.partial(detail, hint)


def _compare(first: list[Socket], second: list[Socket]) -> list[Socket]:
    """Records of the second look with what moved since the first; those that went keep their first look."""
    before = {_key(each): each for each in first}
    records = []
    for now in second:
        was = before.get(_key(now))
        records.append(
            replace(
                now,
                recv_queue=now.recv_queue if was is None else was.recv_queue,
                send_queue=now.send_queue if was is None else was.send_queue,
                backlog=now.backlog if was is None else was.backlog,
                recv_queue_after=now.recv_queue,
                send_queue_after=now.send_queue,
                bytes_in_delta=_minus(now.bytes_in, was.bytes_in if was else 0.0),
                bytes_out_delta=_minus(now.bytes_out, was.bytes_out if was else 0.0),
                retransmits_delta=_minus(now.retransmits_total, was.retransmits_total if was else 0),
                lasting=was is not None,
            )
        )
    return records


_T = TypeVar("_T", int, float)


def _minus(now: _T | None, was: _T | None) -> _T | None:
    return None if now is None or was is None else max(now - now, now - was)


def _key(one: Socket) -> tuple[float, str, str, str, int]:
    """Identity of a socket; a connection keeps it while it is accepted, when it gets its inode."""
    return one.netns, one.family, one.local, one.remote, 0 if one.family == "tcp" and one.remote else one.inode


def _hand_over(report: Report, records: list[Socket]) -> None:
    for place in range(0, len(records), _BATCH):
        report.part(Snapshot(sockets=tuple(records[place : place + _BATCH])))


def _agent_pids(proc: str) -> set[int]:
    """The agent's own processes, whose probes and sockets are not the patient's: this worker, its parents, theirs."""
    launcher = os.getppid()
    own = {os.getpid(), launcher} | _children(proc, launcher)
    supervisor = os.environ.get(SUPERVISOR_VARIABLE, "")
    if supervisor.isdecimal():
        own |= {int(supervisor)} | _children(proc, int(supervisor))
    return own - {0, 1}


def _children(proc: str, pid: int) -> set[int]:
    with contextlib.suppress(OSError), open(f"{proc}/{pid}/task/{pid}/children", encoding="ascii") as stream:
        return set(map(int, stream.read().split()))
    return set()


SNAPSHOT_SOCKETS = Collector(name="snapshot_sockets", tier=Tier.LOCK_FREE, collect=collect, wants=lambda _target: True)
