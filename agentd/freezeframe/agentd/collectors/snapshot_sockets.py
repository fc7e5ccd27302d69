"""snapshot_sockets: TCP and unix-stream sockets of the targets and of whoever is at the other end, owners on both ends.

Reads: sock_diag over netlink (no process is touched), /proc/PID/fd of the targets; of all other processes only while an
end of a connection has no owner yet. Privilege: CAP_SYS_PTRACE for the descriptors of other users. Cost: 10 to 20
microseconds per socket of the namespace and look, 5 per descriptor scanned. Cannot see: other network namespaces than
the agent's (said, PARTIAL), what TLS or HTTP/2 carry, how much of an answer is still to come.

A process at the other end that itself listens (a proxy, a gateway) brings its own connections too, to a fixpoint.
Two looks: the first is handed over at once and the targets are reported done; ages are those of the last look.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace

from freezeframe.agentd.collectors.contract import Collector, Report, Tier, UnavailableError
from freezeframe.agentd.host import Host, sock_diag
from freezeframe.agentd.host.descriptors import Owners
from freezeframe.agentd.host.sock_diag import LISTEN, TcpSocket, UnixSocket
from freezeframe.agentd.host.text import escape
from freezeframe.agentd.jobs import SUPERVISOR_VARIABLE, Job
from freezeframe.judge.model import Snapshot, Socket

# Hops from a target to the last process whose connections are brought: client, gateway, proxy, and one to spare.
_ROUNDS = 4
# Records in one part.
_BATCH = 1000
_NAME_BYTES = 108


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over Socket records; see the module docstring."""
    look = _Look(job, host, report)
    first = look.take()
    _hand_over(report, [replace(each, lasting=not job.window_ms) for each in first])
    for target in job.targets:
        report.done(target.pid)
    if job.window_ms:
        report.doing(f"waiting {job.window_ms:.0f} ms for the second look")
        host.clock.sleep(job.window_ms / 1000.0)
        _hand_over(report, _compare(first, look.take()))


class _Look:
    """Looks at the sockets; remembers who owns what."""

    def __init__(self, job: Job, host: Host, report: Report) -> None:
        self._proc = host.proc()
        self._report = report
        self._cap = job.caps.sockets
        self._owners = Owners()
        self._own = _agent_pids(self._proc)
        self._netns = _namespace(self._proc, "self")
        self._targets: set[int] = set()
        for target in job.targets:
            namespace = _namespace(self._proc, target.pid)
            if namespace in (self._netns, 0):
                self._targets.add(target.pid)
            else:
                report.missed(target.pid, f"lives in network namespace {namespace}, which is not read")

    def take(self) -> list[Socket]:
        self._report.doing("asking the kernel for TCP and unix sockets")
        try:
            tcp, unix = sock_diag.tcp_sockets(), sock_diag.unix_sockets()
        except sock_diag.SockDiagError as error:
            raise UnavailableError(str(error), "load tcp_diag and unix_diag: modprobe -a tcp_diag unix_diag") from error
        self._report.doing("reading descriptors of the targets")
        self._owners.forget(self._owners.scanned)
        self._owners.scan(self._proc, self._targets)
        ends = {(each.local, each.remote): each for each in tcp if each.remote}
        watched = self._closure(tcp, unix, ends)
        if self._owners.denied & watched:
            denied = ", ".join(map(str, sorted(self._owners.denied & watched)[:8]))
            self._report.partial(
                f"reading descriptors of pid {denied}: permission denied",
                "run the agent as root or grant CAP_SYS_PTRACE",
            )
        records = self._tcp_records(tcp, ends, watched) + self._unix_records(unix)
        if len(records) > self._cap:
            self._report.partial(f"{len(records) - self._cap} of {len(records)} sockets left out", "")
            del records[self._cap :]
        return records

    def _closure(
        self, tcp: list[TcpSocket], unix: list[UnixSocket], ends: dict[tuple[str, str], TcpSocket]
    ) -> set[int]:
        """The targets, whoever is at the other end of their connections, and so on through processes that listen."""
        watched = set(self._targets)
        frontier = set(self._targets)
        by_inode = {each.inode: each for each in tcp if each.inode}
        waiting: dict[int, list[TcpSocket]] = {}
        for each in tcp:
            if not each.inode and each.remote:
                waiting.setdefault(each.local_port, []).append(each)
        unix_peers = {each.inode: each.peer_inode for each in unix if each.peer_inode}
        for _ in range(_ROUNDS):
            wanted: set[int] = set()
            for pid in frontier:
                for inode in self._owners.inodes(pid):
                    one = by_inode.get(inode)
                    if one is not None:
                        # Of a listener also the ends of those that wait to be accepted.
                        near = waiting.get(one.local_port, ()) if one.state == LISTEN else (one,)
                        ours = (ends.get((each.remote, each.local)) for each in near)
                        wanted.update(other.inode for other in ours if other is not None)
                    elif inode in unix_peers and pid in self._targets:
                        wanted.add(unix_peers[inode])
            wanted.discard(0)
            if any(not self._owners.of(inode) for inode in wanted):
                self._scan_everybody()
            found = {pid for inode in wanted for pid, _ in self._owners.of(inode)} - watched - self._own
            watched |= found
            frontier = {pid for pid in found if self._listens(pid, by_inode)}
            if not frontier:
                break
        return watched

    def _scan_everybody(self) -> None:
        self._report.doing("reading descriptors of all processes for the other ends")
        everybody = (int(name) for name in os.listdir(self._proc) if name.isdecimal())
        self._owners.scan(self._proc, (pid for pid in everybody if pid not in self._own))

    def _listens(self, pid: int, by_inode: dict[int, TcpSocket]) -> bool:
        return any(
            one.state == LISTEN for inode in self._owners.inodes(pid) if (one := by_inode.get(inode)) is not None
        )

    def _tcp_records(
        self, tcp: list[TcpSocket], ends: dict[tuple[str, str], TcpSocket], watched: set[int]
    ) -> list[Socket]:
        listeners = {each.local_port: each for each in tcp if each.state == LISTEN}
        records = []
        for each in tcp:
            owners = self._owners.of(each.inode) if each.inode else []
            other = ends.get((each.remote, each.local)) if each.remote else None
            peers = self._owners.of(other.inode) if other is not None and other.inode else []
            listener = listeners.get(each.local_port) if each.state != LISTEN else None
            ours = any(pid in watched for pid, _ in owners)
            # A connection without owner waits in the accept queue of the listener on its port, or is closing.
            waiting = not owners and listener is not None and self._owned(listener, watched)
            closing = not owners and any(pid in watched for pid, _ in peers)
            if not (ours or waiting or closing) or any(pid in self._own for pid, _ in (*owners, *peers)):
                continue
            records.append(self._tcp_record(each, owners, other, peers, accepted=listener is not None))
        return records

    def _owned(self, one: TcpSocket, watched: set[int]) -> bool:
        return any(pid in watched for pid, _ in self._owners.of(one.inode))

    def _tcp_record(
        self,
        one: TcpSocket,
        owners: list[tuple[int, int]],
        other: TcpSocket | None,
        peers: list[tuple[int, int]],
        *,
        accepted: bool,
    ) -> Socket:
        base = Socket(
            family="tcp",
            state=one.state,
            local=one.local,
            remote=one.remote,
            pid=owners[0][0] if owners else None,
            fd=owners[0][1] if owners else None,
            peer_pid=peers[0][0] if peers else None,
            peer_fd=peers[0][1] if peers else None,
            peer_inode=other.inode if other is not None else None,
            recv_queue=float(one.receive_queue),
            send_queue=0.0 if one.state == LISTEN else float(one.send_queue),
            inode=one.inode,
            netns=float(self._netns),
            shared_with=tuple(pid for pid, _ in owners[1:]),
            accepted=accepted,
        )
        if one.state == LISTEN:
            return replace(base, backlog=one.receive_queue, backlog_limit=one.send_queue)
        info = one.info
        if info is None:
            return base
        # last_data_sent and last_data_received count from the connection's start while there was none.
        sent = info.bytes_sent if info.bytes_sent is not None else info.bytes_acked
        return replace(
            base,
            last_in_age_ms=float(info.last_data_received_ms) if info.bytes_received else None,
            last_out_age_ms=float(info.last_data_sent_ms) if sent else None,
            last_ack_age_ms=float(info.last_ack_received_ms),
            bytes_in=float(info.bytes_received),
            bytes_out=float(info.bytes_acked),
            retransmits_total=info.total_retransmits,
            retransmits_now=info.retransmits_now,
            unacked=info.unacked,
            unsent_bytes=None if info.unsent_bytes is None else float(info.unsent_bytes),
            rtt_ms=info.rtt_ms,
            peer_window_bytes=None if info.peer_window_bytes is None else float(info.peer_window_bytes),
        )

    def _unix_records(self, unix: list[UnixSocket]) -> list[Socket]:
        names = {each.inode: each.name for each in unix}
        records = []
        for each in unix:
            owners = self._owners.of(each.inode)
            if not any(pid in self._targets for pid, _ in owners) or any(pid in self._own for pid, _ in owners):
                continue
            peers = self._owners.of(each.peer_inode) if each.peer_inode else []
            listens = each.state == LISTEN
            records.append(
                Socket(
                    family="unix",
                    state=each.state,
                    local=_unix_name(each.name),
                    remote=_unix_name(names.get(each.peer_inode, b"")) if each.peer_inode else "",
                    pid=owners[0][0],
                    fd=owners[0][1],
                    peer_pid=peers[0][0] if peers else None,
                    peer_fd=peers[0][1] if peers else None,
                    peer_inode=each.peer_inode or None,
                    recv_queue=float(each.receive_queue),
                    send_queue=0.0 if listens else float(each.send_queue),
                    backlog=each.receive_queue if listens else None,
                    backlog_limit=each.send_queue if listens else None,
                    inode=each.inode,
                    netns=float(self._netns),
                    shared_with=tuple(pid for pid, _ in owners[1:]),
                    accepted=bool(each.name) and not listens,
                )
            )
        return records


def _compare(first: list[Socket], second: list[Socket]) -> list[Socket]:
    """Records of the second look with what moved since the first; those that went keep their first look."""
    before = {_key(each): each for each in first}
    records = []
    for now in second:
        was = before.pop(_key(now), None)
        if was is None:
            records.append(now)
            continue
        records.append(
            replace(
                now,
                recv_queue=was.recv_queue,
                send_queue=was.send_queue,
                backlog=was.backlog,
                recv_queue_after=now.recv_queue,
                send_queue_after=now.send_queue,
                bytes_in_delta=_minus(now.bytes_in, was.bytes_in),
                bytes_out_delta=_minus(now.bytes_out, was.bytes_out),
                retransmits_delta=(
                    max(0, now.retransmits_total - was.retransmits_total)
                    if now.retransmits_total is not None and was.retransmits_total is not None
                    else None
                ),
                lasting=True,
            )
        )
    return records


def _minus(now: float | None, was: float | None) -> float | None:
    return None if now is None or was is None else max(0.0, now - was)


def _key(one: Socket) -> tuple[str, str, str, int]:
    return one.family, one.local, one.remote, one.inode


def _hand_over(report: Report, records: list[Socket]) -> None:
    for place in range(0, len(records), _BATCH):
        report.part(Snapshot(sockets=tuple(records[place : place + _BATCH])))


def _unix_name(name: bytes) -> str:
    return escape(b"@" + name[1:] if name.startswith(b"\0") else name.rstrip(b"\0"), _NAME_BYTES)


def _namespace(proc: str, pid: int | str) -> int:
    """Inode of a network namespace; 0 when it cannot be known."""
    try:
        link = os.readlink(f"{proc}/{pid}/ns/net")
    except OSError:
        return 0
    number = link.removeprefix("net:[").removesuffix("]")
    return int(number) if number.isdecimal() else 0


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
