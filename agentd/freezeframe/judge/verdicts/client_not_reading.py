"""CLIENT_NOT_READING: answers have reached a client, or its window, and it does not take them.

Proof: bytes wait in the client's receive queue (this host), or the server has bytes to send and the client offers no
window (another host); the client took none of them over the whole window, or, with one look, for STUCK_MS since the
last came; and either they hold the server back, which has more in its send queue, or the last of them came LONG_MS ago.
A local client must be able to run: a stopped one is PROCESS_STOPPED.
HIGH when the server is held back on all of them; else MEDIUM. The router may go on buffering in its own memory.

Lookalikes: a stream caught between two reads (bytes are taken); one that is read slowly, a buffer at a time with long
pauses, while the window takes all that the server has; the last bytes of an answer that a client leaves unread when it
has seen its end, so less than a kilobyte is no proof.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from freezeframe.judge.correlate.facts import Connection, Facts
from freezeframe.judge.correlate.thresholds import LEFTOVER_BYTES, LONG_MS, STUCK_MS
from freezeframe.judge.model import Confidence, Verdict
from freezeframe.judge.verdicts._proof import runs
from freezeframe.judge.verdicts._steps import stacks, step
from freezeframe.judge.verdicts._words import count, evidence, process, socket_refs

Level = Confidence.Level


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per client."""
    # There may be as many clients as connections.
    untaken: dict[int | str, list[Connection]] = {}
    for c in facts.connections:
        if c.untaken:
            untaken.setdefault(c.client_address if c.client_pid is None else c.client_pid, []).append(c)
    of = ((client, untaken.get(client.address if client.pid is None else client.pid, [])) for client in facts.clients)
    return tuple(v for client, mine in of if (v := _client(facts, client.pid, client.address, mine)) is not None)


def _client(facts: Facts, pid: int | None, address: str, untaken: Sequence[Connection]) -> Verdict | None:
    found = [c for c in untaken if _amount(facts, c) >= LEFTOVER_BYTES and _waits(facts, c)]
    # A client that nothing is known of is no process of this snapshot, but its receive queue is.
    if not found or (pid in facts.processes and pid is not None and not runs(facts, pid)):
        return None
    blocked = [c for c in found if _held_back(facts, c)]
    name = process(facts, pid) if pid is not None else address
    waiting = sum(_amount(facts, c) for c in found)
    servers = sorted({c.server_pid for c in found if c.server_pid is not None})
    return Verdict(
        code=Verdict.Code.CLIENT_NOT_READING,
        hop="client",
        holder_pids=(pid,) if pid is not None else (),
        holder_address="" if pid is not None else address,
        summary=f"The client {name} does not read {count(len(found), 'answer')}: {waiting / 1024:.0f} KiB wait for it.",
        confidence=Level.HIGH if len(blocked) == len(found) else Level.MEDIUM,
        evidence=(
            evidence(
                f"{count(len(found), 'connection')} with bytes that the client does not take", *socket_refs(found)
            ),
            *(
                (evidence(f"{count(len(blocked), 'connection')} with bytes in the send queue", *socket_refs(blocked)),)
                if blocked
                else ()
            ),
        ),
        next_steps=(
            stacks(facts, pid, "what the client does instead of reading")
            if pid is not None
            else step(f"ss -tinp dst {shlex.quote(address)}", "its connections here: windows and send queues"),
            *(
                step(f"grep -E 'VmRSS|VmSwap' /proc/{each}/status", "memory of who sends: it may buffer without bound")
                for each in servers
            ),
        ),
        explains=len(found),
    )


def _amount(facts: Facts, connection: Connection) -> float:
    sockets = facts.snapshot.sockets
    received = sockets[connection.client_index].recv_queue if connection.client_index is not None else 0.0
    return received + _unsent(facts, connection)


def _unsent(facts: Facts, connection: Connection) -> float:
    return facts.snapshot.sockets[connection.server_index].send_queue if connection.server_index is not None else 0.0


def _held_back(facts: Facts, connection: Connection) -> bool:
    """Whether the server has more than the client's window takes, and not only bytes that are on their way."""
    if connection.server_index is None:
        return False
    server = facts.snapshot.sockets[connection.server_index]
    return server.send_queue > 0 and (server.peer_window_bytes == 0 or connection.bytes_down_delta == 0)


def _waits(facts: Facts, connection: Connection) -> bool:
    age_ms = connection.age_ms or 0.0
    if not _held_back(facts, connection):
        return age_ms >= LONG_MS
    return facts.two_looks or age_ms >= STUCK_MS
