"""What `ss` shows of a bed, hop by hop: the measure that the bed's own word is checked against."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.bed.bed import Bed


@dataclass(frozen=True, kw_only=True)
class Connection:
    """One end of a TCP connection as `ss -tinp` shows it."""

    state: str
    recv_q: int
    """Of a listener: connections that nobody has accepted."""
    send_q: int
    local_port: int
    peer_port: int
    pid: int | None
    """None: no process holds it (not accepted yet, or closed)."""
    last_sent_ms: int | None
    last_received_ms: int | None
    bytes_sent: int
    bytes_received: int

    @property
    def used(self) -> bool:
        """Whether it has carried anything; the router's pool opens a few connections that never do."""
        return self.bytes_received + self.bytes_sent > 0 or self.recv_q > 0

    @property
    def owes(self) -> bool:
        """Whether, seen from the server's end, bytes came in and none have gone out since.

        On a connection that has answered before, a request that came in the clock tick (4 ms here) of the last answer
        is not seen: the ages are equal and prove nothing.
        """
        if self.bytes_received and not self.bytes_sent:
            return True
        return self.last_received_ms is not None and (self.last_sent_ms or 0) > self.last_received_ms


def connections() -> list[Connection]:
    """Every TCP socket of this network namespace but those in TIME-WAIT, which no process owns."""
    output = subprocess.run(["ss", "-tinpaOH"], capture_output=True, text=True, check=True).stdout
    found = [_parse(line) for line in output.splitlines()]
    return [entry for entry in found if entry is not None and entry.state != "TIME-WAIT"]


def _parse(line: str) -> Connection | None:
    fields = line.split()
    if len(fields) < 5:
        return None
    state, recv_q, send_q, local, peer = fields[:5]

    def number(pattern: str) -> int | None:
        match = re.search(pattern, line)
        return int(match.group(1)) if match else None

    return Connection(
        state=state,
        recv_q=int(recv_q),
        send_q=int(send_q),
        local_port=int(local.rsplit(":", 1)[1]),
        peer_port=0 if peer.endswith("*") else int(peer.rsplit(":", 1)[1]),
        pid=number(r"pid=(\d+)"),
        last_sent_ms=number(r"\blastsnd:(\d+)"),
        last_received_ms=number(r"\blastrcv:(\d+)"),
        bytes_sent=number(r"\bbytes_sent:(\d+)") or 0,
        bytes_received=number(r"\bbytes_received:(\d+)") or 0,
    )


@dataclass(frozen=True, kw_only=True)
class Hop:
    """Both ends of the connections between a client process and a server of the bed."""

    name: str
    client_end: tuple[Connection, ...]
    server_end: tuple[Connection, ...]
    """Only those that a peer of this hop has opened; those in the accept backlog have no pid."""
    backlog: int
    """Of the server's listener; shared by every hop to it."""


def hops(bed: Bed) -> dict[str, Hop]:
    """Return the hops of a bed: "harness>router", "router>ENGINE" of each engine, "stray>..." to where it goes."""
    every = connections()
    pids = bed.pids
    pairs = [("harness", pids.harness, "router", bed.router_port)]
    pairs += [("router", pids.router, name, engine.port) for name, engine in bed.engines.items()]
    if pids.stray is not None:
        pairs += [("stray", pids.stray, name, engine.port) for name, engine in bed.engines.items()]
        pairs.append(("stray", pids.stray, "router", bed.router_port))
    found = {}
    for client, pid, server, port in pairs:
        client_end = tuple(entry for entry in every if entry.pid == pid and entry.peer_port == port)
        opened = {entry.local_port for entry in client_end}
        hop = Hop(
            name=f"{client}>{server}",
            client_end=client_end,
            server_end=tuple(entry for entry in every if entry.local_port == port and entry.peer_port in opened),
            backlog=sum(entry.recv_q for entry in every if entry.state == "LISTEN" and entry.local_port == port),
        )
        if client != "stray" or client_end:
            found[hop.name] = hop
    return found


def describe(hop: Hop) -> str:
    """One line: how many connections, their states and queues, who owes, ages of the last bytes at the server's end."""
    client, server = hop.client_end, hop.server_end
    parts = [f"{len(client)} out"]
    unused = sum(not entry.used for entry in client)
    if unused:
        parts.append(f"{unused} never used")
    for state in sorted({entry.state for entry in client}):
        parts.append(f"{state} {sum(entry.state == state for entry in client)}")
    for label, ends in (("client", client), ("server", server)):
        for queue in ("recv_q", "send_q"):
            holding = sum(getattr(entry, queue) > 0 for entry in ends if entry.state != "LISTEN")
            if holding:
                parts.append(f"{holding} with {label} {queue}>0")
    if hop.backlog:
        parts.append(f"backlog {hop.backlog}")
    unowned = sum(entry.pid is None for entry in server)
    if unowned:
        parts.append(f"{unowned} of no process")
    owing = [entry for entry in server if entry.owes]
    tied = sum(entry.used and not entry.owes and entry.last_sent_ms == entry.last_received_ms for entry in server)
    parts.append(f"{len(owing)} owed" + (f" ({tied} of equal age)" if tied else ""))
    for label, ages in (
        ("lastrcv", [entry.last_received_ms for entry in server]),
        ("lastsnd", [entry.last_sent_ms for entry in server]),
    ):
        known = [age for age in ages if age is not None]
        if known:
            parts.append(f"{label} {min(known)}-{max(known)} ms")
    return ", ".join(parts)
