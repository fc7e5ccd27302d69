"""Snapshots of several hosts -> one snapshot of the whole path: pure.

What is a host's own is made distinct, and nothing else is changed:

- hosts are numbered from 1 in the order given; pid p of host n is `n * PIDS + p`, also of one that says what no kernel
  gives. Pid 0 stays: it means that there is none. Thread ids stay, since nothing looks at one without its pid.
- network namespaces are told apart by `n * 2**32`, inodes of sockets are numbered anew;
- records of one kind stand host after host, so that a position tells its host (`Place.first`);
- the two ends of a connection between hosts are told of each other, as an agent does for those of its own host.

Ends belong together when each one's addresses are the other's turned round, and no third end has the same. Where the
way changes the server's address (a service address, a published port) the client's address and port tell, if just one
end on each side has them. An end whose client's address was changed has no partner: `Joined.unknowns` says so.

Ages of hosts that looked later are lessened to the instant of the first (`at_instant`): what was so for longer than the
delay was so then, too; what is younger came after it and has age 0 here, which proves nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

from freezeframe.judge.correlate.addresses import LOOPBACK, host_of, plain, port_of
from freezeframe.judge.model import (
    AsyncioTask,
    ConnectionEnd,
    ConnectionEvent,
    DebugTrace,
    Endpoint,
    FutexAddress,
    FutexWait,
    Gpu,
    GpuProcess,
    History,
    Host,
    KernelEvent,
    Lock,
    LogFinding,
    LogRequest,
    LogSource,
    Meta,
    Metric,
    NativeThread,
    Outcome,
    Process,
    ProfileThread,
    PythonThread,
    RecorderState,
    Request,
    Series,
    Snapshot,
    Socket,
    Throttle,
)

# Pids are below it (the kernel's PID_MAX_LIMIT).
PIDS = 1 << 22
# Inodes of namespaces are below it.
_NAMESPACES = float(1 << 32)

# Where a record names a process, and records that hold such records.
PID_FIELDS: dict[type, tuple[str, ...]] = {
    AsyncioTask: ("pid",),
    ConnectionEnd: ("pid",),
    ConnectionEvent: ("pid",),
    DebugTrace: ("pid",),
    Endpoint: ("pid",),
    FutexAddress: ("pid",),
    FutexWait: ("pid",),
    Gpu: (),
    GpuProcess: ("pid",),
    History: (),
    Host: (),
    KernelEvent: ("pid",),
    Lock: ("pid", "owner_pid", "releaser_pids"),
    LogFinding: ("pid",),
    LogRequest: ("pid",),
    LogSource: ("pid",),
    Meta: ("pids",),
    Metric: ("pid",),
    NativeThread: ("pid",),
    Outcome: ("pids_missed",),
    Process: ("pid", "parent_pid", "engine_pid", "tracer_pid"),
    ProfileThread: ("pid",),
    PythonThread: ("pid",),
    RecorderState: ("io_uring_pids",),
    Request: ("pid", "peer_pid"),
    Series: ("pid", "peer_pid"),
    Socket: ("pid", "peer_pid", "shared_with"),
    Throttle: ("pids",),
}
_HOLDING: dict[type, tuple[str, ...]] = {
    Gpu: ("processes",),
    History: ("series",),
    Host: ("throttles",),
    RecorderState: ("resting",),
}
# Made anew from the joined ones.
_MADE_ANEW = frozenset({"edges", "hops", "ranks", "verdict", "findings"})
_OPEN = frozenset({"LISTEN", "UNCONN"})


def number_of(pid: int) -> int:
    """Number of the host that a pid belongs to; 0 in a snapshot of one host."""
    return pid // PIDS


def own_pid(pid: int) -> int:
    """The pid that a process has on its host."""
    return pid % PIDS


def addresses(sockets: Iterable[Socket]) -> dict[int, frozenset[str]]:
    """Host number -> addresses, without port, that its sockets have."""
    found: dict[int, set[str]] = {}
    for each in sockets:
        if each.family == "tcp":
            found.setdefault(_host_number(each), set()).add(host_of(each.local))
    return {number: frozenset(known) for number, known in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Several hosts as one."""

    snapshot: Snapshot
    # Each as it went in, with pids as in `snapshot`; that of host n is at n - 1.
    parts: tuple[Snapshot, ...]
    # Kind of record -> position of each host's first one.
    first: Mapping[str, tuple[int, ...]]
    # What of the connections between the hosts is not known, a sentence each.
    unknowns: tuple[str, ...]


def join_hosts(snapshots: Iterable[Snapshot]) -> Joined:
    """Join them. Roles are those that each host's agent found: `conclude_fleet` finds them anew."""
    return join_parts(distinct_parts(snapshots))


def distinct_parts(snapshots: Iterable[Snapshot]) -> list[Snapshot]:
    """Each with what is a host's own made distinct. They are taken one by one: hundreds are in memory once."""
    inodes: dict[tuple[int, int], int] = {}
    return [_distinct(snapshot, number, inodes) for number, snapshot in enumerate(snapshots, 1)]


def join_parts(parts: Sequence[Snapshot]) -> Joined:
    """Join what `distinct_parts` gave."""
    values: dict[str, Any] = {}
    first: dict[str, tuple[int, ...]] = {}
    for field in fields(Snapshot):
        if field.name in _MADE_ANEW or not isinstance(getattr(parts[0], field.name), tuple):
            continue
        records: list[Any] = []
        starts = []
        for part in parts:
            starts.append(len(records))
            records += getattr(part, field.name)
        if field.name != "requests":  # which are found anew
            first[field.name] = tuple(starts)
        values[field.name] = tuple(records)
    names = [(part.meta or Meta()).host for part in parts]
    values["sockets"], unknowns = _with_peers(list(values["sockets"]), names)
    snapshot = Snapshot(
        meta=_meta([part.meta or Meta() for part in parts]),
        history=_history([part.history for part in parts if part.history is not None]),
        recorder=_recorder([part.recorder for part in parts if part.recorder is not None]),
        **values,
    )
    return Joined(snapshot=snapshot, parts=tuple(parts), first=first, unknowns=unknowns)


def _distinct(snapshot: Snapshot, number: int, inodes: dict[tuple[int, int], int]) -> Snapshot:
    changed: dict[str, Any] = {name: None if name == "verdict" else () for name in _MADE_ANEW}
    for field in fields(snapshot):
        value = getattr(snapshot, field.name)
        if field.name in _MADE_ANEW or field.name == "sockets" or not value:
            continue
        changed[field.name] = _moved(value, number * PIDS)
    space = number * _NAMESPACES
    changed["processes"] = tuple(replace(p, netns=p.netns + space) for p in changed.get("processes", ()))
    changed["sockets"] = tuple(_distinct_socket(each, number, inodes) for each in snapshot.sockets)
    return replace(snapshot, **changed)


def _distinct_socket(socket: Socket, number: int, inodes: dict[tuple[int, int], int]) -> Socket:
    """The socket, with an inode that is distinct over all hosts, and below 2**32, as the wire has it."""
    by = number * PIDS
    inode, peer = socket.inode, socket.peer_inode
    return replace(
        socket,
        pid=own_pid(socket.pid) + by if socket.pid else socket.pid,
        peer_pid=own_pid(socket.peer_pid) + by if socket.peer_pid else socket.peer_pid,
        shared_with=tuple(own_pid(pid) + by for pid in socket.shared_with),
        netns=socket.netns + number * _NAMESPACES,
        inode=inodes.setdefault((number, inode), len(inodes) + 1) if inode else 0,
        peer_inode=inodes.setdefault((number, peer), len(inodes) + 1) if peer else peer,
    )


def _moved(value: Any, by: int) -> Any:
    """The record, or each of several, with its pids moved."""
    if isinstance(value, tuple):
        return tuple(_moved(each, by) for each in value)
    kind = type(value)
    changed: dict[str, Any] = {}
    for name in PID_FIELDS[kind]:
        pid = getattr(value, name)
        if pid:
            changed[name] = tuple(own_pid(p) + by for p in pid) if isinstance(pid, tuple) else own_pid(pid) + by
    for name in _HOLDING.get(kind, ()):
        changed[name] = _moved(getattr(value, name), by)
    return replace(value, **changed) if changed else value


def _host_number(socket: Socket) -> int:
    return int(socket.netns // _NAMESPACES)


def _with_peers(sockets: list[Socket], names: Sequence[str]) -> tuple[tuple[Socket, ...], tuple[str, ...]]:
    """The sockets with the other ends of connections between hosts filled in, and what has no other end."""
    lone = [
        index
        for index, each in enumerate(sockets)
        if each.family == "tcp" and each.remote and each.state not in _OPEN and _is_lone(each)
    ]
    listeners: dict[tuple[float, int], set[int]] = {}
    for each in sockets:
        if each.family == "tcp" and each.state == "LISTEN" and each.pid is not None:
            listeners.setdefault((each.netns, port_of(each.local)), set()).add(each.pid)
    pairs: dict[tuple[str, str], list[int]] = {}
    for index in lone:
        pairs.setdefault((plain(sockets[index].local), plain(sockets[index].remote)), []).append(index)
    partner: dict[int, int] = {}
    for (local, remote), here in pairs.items():
        theirs = pairs.get((remote, local), [])
        if len(here) == len(theirs) == 1 and _host_number(sockets[here[0]]) != _host_number(sockets[theirs[0]]):
            partner[here[0]] = theirs[0]
    partner |= _translated(sockets, [index for index in lone if index not in partner], listeners)
    found = list(sockets)
    for ours, other in partner.items():
        peer = sockets[other]
        pid = peer.pid
        if pid is None and len(known := listeners.get((peer.netns, port_of(peer.local)), set())) == 1:
            # It waits in the accept queue, or is closed: its listener tells whose it is.
            (pid,) = known
        found[ours] = replace(sockets[ours], peer_pid=pid, peer_inode=peer.inode or None, peer_fd=peer.fd)
    left = [index for index in lone if index not in partner]
    return tuple(found), _without_other_end(sockets, left, listeners, names)


def _is_lone(socket: Socket) -> bool:
    """Whether its agent found no other end on the same host."""
    if socket.peer_pid is not None or socket.peer_inode:
        return False
    return host_of(socket.local) != host_of(socket.remote) and not plain(socket.remote).startswith(LOOPBACK)


def _translated(
    sockets: Sequence[Socket], lone: Iterable[int], listeners: Mapping[tuple[float, int], set[int]]
) -> dict[int, int]:
    """Ends of connections whose server's address was changed on the way: the client's own is on both."""
    asking: dict[str, list[int]] = {}
    asked: dict[str, list[int]] = {}
    for index in lone:
        each = sockets[index]
        if each.accepted or (each.netns, port_of(each.local)) in listeners:
            asked.setdefault(plain(each.remote), []).append(index)
        else:
            asking.setdefault(plain(each.local), []).append(index)
    found = {}
    for address, clients in asking.items():
        servers = asked.get(address, [])
        if len(clients) == len(servers) == 1 and _host_number(sockets[clients[0]]) != _host_number(sockets[servers[0]]):
            found[clients[0]], found[servers[0]] = servers[0], clients[0]
    return found


def _without_other_end(
    sockets: Sequence[Socket],
    left: Iterable[int],
    listeners: Mapping[tuple[float, int], set[int]],
    names: Sequence[str],
) -> tuple[str, ...]:
    """Say of which connections to a listener of another host of these only the client's end was found."""
    homes: dict[str, set[float]] = {}
    for each in sockets:
        if each.family == "tcp" and each.remote and each.state not in _OPEN:
            homes.setdefault(host_of(each.local), set()).add(each.netns)
    counts: Counter[tuple[int, str, int]] = Counter()
    for index in left:
        each = sockets[index]
        for netns in homes.get(host_of(each.remote), ()):
            there = int(netns // _NAMESPACES)
            if there != _host_number(each) and (netns, port_of(each.remote)) in listeners and not each.accepted:
                counts[_host_number(each), plain(each.remote), there] += 1
    return tuple(
        f"{number} of the connections of {names[here - 1]} to {address} have no other end on {names[there - 1]}: it "
        "is closed there, or their addresses are translated on the way"
        for (here, address, there), number in sorted(counts.items())
    )


def _meta(metas: Sequence[Meta]) -> Meta:
    return Meta(
        started_at=min((meta.started_at for meta in metas if meta.started_at), default=""),
        window_ms=min(meta.window_ms for meta in metas),
        client=next((meta.client for meta in metas if meta.client), ""),
        usual_clients=tuple(dict.fromkeys(name for meta in metas for name in meta.usual_clients)),
        schema=max(meta.schema for meta in metas),
    )


def _history(several: Sequence[History]) -> History | None:
    """Series of those hosts that sample as often as the first."""
    if not several:
        return None
    interval = several[0].interval_ms
    series = tuple(each for history in several if history.interval_ms == interval for each in history.series)
    return History(series=series, interval_ms=interval)


def _recorder(several: Sequence[RecorderState]) -> RecorderState | None:
    if not several:
        return None
    return RecorderState(
        # What all of them have seen.
        armed_ms=min(each.armed_ms for each in several),
        io_uring_pids=tuple(pid for each in several for pid in each.io_uring_pids),
        resting=tuple(end for each in several for end in each.resting),
    )


def at_instant(snapshot: Snapshot, late_ms: float) -> Snapshot:
    """The snapshot with its ages lessened by so much: as of an earlier instant, as far as that can be told."""
    earlier: Snapshot = snapshot if late_ms <= 0 else _earlier(snapshot, late_ms)
    return earlier


def _earlier(value: Any, late_ms: float) -> Any:
    changed: dict[str, Any] = {}
    kind: Any = type(value)
    for name in _aged(kind):
        old = getattr(value, name)
        if isinstance(old, tuple):
            if old and is_dataclass(old[0]):
                changed[name] = tuple(_earlier(each, late_ms) for each in old)
        elif is_dataclass(old):
            changed[name] = _earlier(old, late_ms)
        elif isinstance(old, (int, float)) and name.endswith("age_ms"):
            changed[name] = max(0.0, old - late_ms)
    return replace(value, **changed) if changed else value


@cache
def _aged(kind: type) -> tuple[str, ...]:
    """Fields that are ages, or may hold records that have some."""
    return tuple(
        field.name
        for field in fields(kind)
        if field.name.endswith("age_ms") or not any(word in str(field.type) for word in ("float", "int", "bool"))
    )
