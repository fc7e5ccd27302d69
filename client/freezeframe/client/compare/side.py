"""One of two snapshots, indexed, and what it looked at: the answer to "would it be here if it were there?"."""

from __future__ import annotations

import ipaddress
from functools import cached_property, lru_cache
from typing import Any

from freezeframe.client.render.values import enum_name
from freezeframe.v1 import process_pb2, snapshot_pb2, socket_pb2

# Kind of record -> its field, and the collectors any one of which brings it whole.
KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "requests": ("requests", ("snapshot_sockets", "trace_requests")),
    "sockets": ("sockets", ("snapshot_sockets",)),
    "python": ("python_threads", ("snapshot_python_stacks",)),
    "native": ("native_threads", ("snapshot_native_stacks",)),
    "asyncio": ("asyncio_tasks", ("snapshot_asyncio_tasks",)),
    "metrics": ("metrics", ("sample_metrics",)),
    "processes": ("processes", ("snapshot_processes",)),
}

# A process and its start: pids come back.
Program = tuple[int, float]
Tie = tuple[object, ...]


class Side:
    """A snapshot and what is lost of its file."""

    def __init__(self, snapshot: snapshot_pb2.Snapshot, lost: frozenset[str] = frozenset()) -> None:
        """Take a snapshot whose sections called `lost` could not be read."""
        self.snapshot = snapshot
        self.lost = lost
        self.outcomes = {outcome.collector: outcome for outcome in snapshot.outcomes}

    @cached_property
    def processes(self) -> dict[int, process_pb2.Process]:
        """Processes that were there at the end, by pid."""
        return {process.pid: process for process in self.snapshot.processes if not process.exited}

    @cached_property
    def sockets(self) -> dict[Tie, socket_pb2.Socket]:
        """Sockets by what they are to both ends."""
        return {tie(socket): socket for socket in self.snapshot.sockets}

    @cached_property
    def socket_of(self) -> dict[tuple[int, int], socket_pb2.Socket]:
        """Sockets by process and descriptor."""
        return {
            (each.pid, each.fd): each for each in self.snapshot.sockets if each.HasField("pid") and each.HasField("fd")
        }

    @cached_property
    def hop_of(self) -> dict[int, str]:
        """Name of the hop by pid."""
        return {pid: hop.name for hop in self.snapshot.hops for pid in hop.pids}

    def program(self, pid: int) -> Program:
        """Tell the process from others that have, or had, its pid."""
        known = self.processes.get(pid)
        return (pid, known.start_ticks if known is not None else 0.0)

    def unseen(self, kind: str, pid: int | None = None) -> str:
        """Say why records of this kind (of this process) may be missing here; empty when they were looked for."""
        field, collectors = KINDS[kind]
        if field in self.lost:
            return f"its section {field} is lost"
        # Records of processes are read through the list of processes.
        if "processes" in self.lost:
            return "its section processes is lost"
        if pid is not None and pid not in self.processes and (why := self._absent(pid)):
            return why
        told = [collector for collector in collectors if collector in self.outcomes]
        if not told:
            # A part of a snapshot, or a file of an older writer, has records without a word on who brought them.
            return "" if len(getattr(self.snapshot, field)) else f"{collectors[0]} did not run"
        reasons = [self._fell_short(collector, pid) for collector in told]
        return "" if "" in reasons else reasons[0]

    def _absent(self, pid: int) -> str:
        """Say why a process that is not listed may run all the same."""
        if any(process.pid == pid and process.exited for process in self.snapshot.processes):
            return ""
        if self.snapshot.meta.pids:
            return f"only {', '.join(str(each) for each in self.snapshot.meta.pids)} and their peers were asked for"
        found = self.outcomes.get("find_processes")
        if found is not None and enum_name(found, "status") not in {"OK", "PARTIAL"}:
            return f"find_processes {enum_name(found, 'status')}"
        return ""

    def _fell_short(self, collector: str, pid: int | None) -> str:
        outcome = self.outcomes[collector]
        status = enum_name(outcome, "status")
        if status == "OK":
            return ""
        if status == "PARTIAL" and pid is not None and outcome.pids_missed and pid not in outcome.pids_missed:
            return ""
        return f"{collector} {status}" + (f": {outcome.detail}" if outcome.detail else "")


def tie(socket: socket_pb2.Socket) -> Tie:
    """Name what both snapshots call the same: a connection by its addresses, anything else by its inode."""
    if socket.family == "tcp" and socket.remote:
        local = _is_local(socket.local.rpartition(":")[0])
        return ("tcp", socket.netns if local else 0.0, socket.local, socket.remote)
    return (socket.family, socket.netns, socket.local, socket.inode)


def is_another(before: Any, after: Any) -> bool:
    """Say whether two sockets with equal addresses are known to be different ones."""
    return bool(before.inode and after.inode and before.inode != after.inode)


@lru_cache(maxsize=1024)
def _is_local(address: str) -> bool:
    """Loopback addresses mean another host in every network namespace."""
    try:
        return ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        return True
