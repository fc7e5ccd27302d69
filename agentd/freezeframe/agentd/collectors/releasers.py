"""Who can end the waits of threads that wait for a pipe, a socket or a lock on a file."""

from __future__ import annotations

import re
from dataclasses import dataclass

from freezeframe.agentd.collectors.contract import Report
from freezeframe.agentd.host import Host, file_locks, holders, namespaces, procfs
from freezeframe.agentd.host.sock_diag import SockDiagError
from freezeframe.agentd.host.socket_graph import Graph
from freezeframe.agentd.host.waits import Wait
from freezeframe.judge.model import Confidence

Level = Confidence.Level

_READS = frozenset({"read", "readv", "pread64", "recvfrom", "recvmsg", "recvmmsg", "accept", "accept4", "splice"})
_WRITES = frozenset({"write", "writev", "pwrite64", "sendto", "sendmsg", "sendmmsg", "connect"})
_POLLIN, _POLLOUT = 1, 4
SOCKET = re.compile(r"^socket:\[(\d+)\]$")


@dataclass(slots=True, kw_only=True)
class Waiting:
    """One thread's wait, with what it is for."""

    tid: int
    wait: Wait
    # Of the call, to tell it from the next one like it.
    place: tuple[int, int]
    switches: int
    kind: str
    address: int = 0
    object: str = ""
    owner_tid: int | None = None
    owner_pid: int | None = None
    confidence: Confidence.Level = Level.UNSPECIFIED
    # Thread that has the lock and has ended, as its pid namespace numbers it; 0 = none.
    ended_owner: int = 0
    # Processes that can end it; None when they are not all known.
    releasers: frozenset[int] | None = None
    steady: bool = False


def find_releasers(all_waits: list[tuple[int, Waiting]], host: Host, report: Report) -> None:
    """Find who holds the other ends of pipes and sockets, and the locks on files, for waits of processes by pid."""
    ends = [(pid, waiting) for pid, waiting in all_waits if waiting.kind in {"pipe", "socket"}]
    files = [(pid, waiting) for pid, waiting in all_waits if waiting.kind in {"flock", "posix"}]
    if ends:
        _find_holders(ends, host, report)
    if files:
        _file_locks(files, host.proc(), report)


def _find_holders(ends: list[tuple[int, Waiting]], host: Host, report: Report) -> None:
    peers = _peers([(pid, waiting) for pid, waiting in ends if waiting.kind == "socket"], host, report)
    # Of a socket the other end, of a pipe the pipe.
    wanted = {waiting.object: peers.get(waiting.object) for _, waiting in ends if waiting.kind == "socket"}
    links = {waiting.object: waiting.object for _, waiting in ends if waiting.kind == "pipe"}
    links |= {link: f"socket:[{peer}]" for link, peer in wanted.items() if peer}
    report.doing("reading who has pipes and sockets open")
    found = holders.find(host.proc(), links.values())
    for _, waiting in ends:
        direction = _direction(waiting.wait)
        if waiting.object in links and direction:
            holding = found.by_link[links[waiting.object]]
            others = {each.pid for each in holding if (each.writes if direction == "read" else each.reads)}
            if len(others) == 1:
                waiting.owner_pid = next(iter(others))
            if others:
                waiting.releasers = frozenset(others)
                waiting.confidence = Level.MEDIUM if found.unseen else Level.HIGH


def _peers(waiting: list[tuple[int, Waiting]], host: Host, report: Report) -> dict[str, int]:
    """Inode of the other end of each socket that is waited on, where that is on this host, by its link."""
    graph, found = Graph(), {}
    proc = host.proc()
    for namespace, pid in namespaces.namespaces_of(proc, {pid for pid, _ in waiting}).items():
        report.doing(f"asking for the sockets of network namespace {namespace}")
        try:
            graph.add(namespace, namespaces.sockets_of(proc, pid))
        except SockDiagError as error:
            report.partial(f"other ends of sockets are not known: {error}")
    for _, each in waiting:
        match = SOCKET.match(each.object)
        inode = int(match[1]) if match is not None else 0
        peer = graph.peer(inode)
        if peer:
            found[each.object] = peer
    return found


def _file_locks(files: list[tuple[int, Waiting]], proc: str, report: Report) -> None:
    report.doing("reading /proc/locks")
    try:
        locks = file_locks.read(proc)
    except procfs.ProcfsError as error:
        report.partial(str(error))
        return
    for pid, waiting in files:
        mine = [lock for lock in locks if pid in lock.waiting_pids and lock.kind.startswith(waiting.kind[:5])]
        if len(mine) == 1 and mine[0].owner_pid:
            waiting.owner_pid = mine[0].owner_pid
            # A lock of flock goes with the open file, which children of its owner may have.
            waiting.confidence = Level.HIGH if mine[0].kind == "posix" else Level.MEDIUM
            if mine[0].kind == "posix":
                waiting.releasers = frozenset({mine[0].owner_pid})


def _direction(wait: Wait) -> str:
    """Whether a wait is for something to read, or to write; empty when for neither."""
    if wait.call in _READS:
        return "read"
    if wait.call in _WRITES:
        return "write"
    if len(wait.polled) == 1:
        events = wait.polled[0][2]
        if events & _POLLIN and not events & _POLLOUT:
            return "read"
        if events & _POLLOUT and not events & _POLLIN:
            return "write"
    return ""
