"""find_callers: who on this host is connected to a port on which another host serves.

Only where several hosts are captured: without a router or an engine of its own a host cannot tell its clients.

Reads: sock_diag over netlink in every network namespace of this host; /proc/PID/fd of all processes only where there
is such a connection. Privilege: as snapshot_sockets. Cost: 10 microseconds per socket, 4 per descriptor scanned.

Cannot see: a server whose address and port are changed on the way.
Records hold a socket's family, remote and pid.
"""

from __future__ import annotations

from freezeframe.agentd.collectors.contract import Collector, Report, Tier
from freezeframe.agentd.host import Host, namespaces, procfs
from freezeframe.agentd.host.descriptors import Owners
from freezeframe.agentd.host.sock_diag import SockDiagError
from freezeframe.agentd.host.socket_graph import LOOPBACK, Graph
from freezeframe.agentd.jobs import Job
from freezeframe.judge.correlate.addresses import port_of
from freezeframe.judge.model import Snapshot, Socket


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over one record per connection to one of `job.toward`."""
    proc = host.proc()
    report.doing("asking the kernel for TCP sockets")
    pids = list(procfs.pids(proc))
    graph = Graph()
    for namespace, pid in namespaces.namespaces_of(proc, pids).items():
        try:
            graph.add(namespace, namespaces.sockets_of(proc, pid))
        except SockDiagError as error:
            report.partial(f"network namespace {namespace} of pid {pid}: {error}", "grant CAP_SYS_ADMIN")
    here = graph.addresses()
    away = [
        one
        for net in graph.nets
        for one in net.tcp
        if one.inode and one.remote and port_of(one.remote) in job.toward
        if one.remote.rpartition(":")[0] not in here and not one.remote.startswith(LOOPBACK)
        if net.listener(one) is None
    ]
    if not away:
        return
    report.doing("reading descriptors of all processes for whose these connections are")
    owners = Owners()
    owners.scan(proc, pids)
    report.part(
        Snapshot(
            sockets=tuple(
                Socket(family="tcp", remote=one.remote, pid=pid) for one in away for pid, _ in owners.of(one.inode)
            )
        )
    )


FIND_CALLERS = Collector(name="find_callers", tier=Tier.LOCK_FREE, collect=collect, wants=None)
