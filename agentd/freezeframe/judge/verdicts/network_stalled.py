"""NETWORK_STALLED: bytes of an edge of the path stay unacknowledged and are sent again, or a connect gets no answer.

Proof, at the sending end, by the kernel's own counters:
- segments in flight, sent again twice or more without an answer, nothing acknowledged for STUCK_MS, and the peer's
  window not closed. A peer that is stopped or does not read still acknowledges: its kernel does;
- or SYN-SENT with the SYN sent again twice (3 s), to a peer whose accept queue on this host is not the reason.
HIGH when more was sent again between the looks, or three times before; else MEDIUM.

No holder is named: from one end it cannot be told which part of the path, or a host that went away, is at fault.
"""

from __future__ import annotations

import shlex

from freezeframe.judge.correlate.facts import Connection, Debt, Facts
from freezeframe.judge.correlate.thresholds import STUCK_MS
from freezeframe.judge.model import Confidence, Socket, Verdict
from freezeframe.judge.verdicts._steps import step
from freezeframe.judge.verdicts._words import count, evidence, seconds

Level = Confidence.Level

_AGAIN, _SURELY = 2, 3


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per pair of hosts or addresses."""
    groups: dict[str, list[tuple[Connection, int]]] = {}
    for connection in facts.connections:
        for index in (connection.client_index, connection.server_index):
            if index is None:
                continue
            socket = facts.snapshot.sockets[index]
            if unanswered(socket) or _connects_in_vain(facts, connection, socket):
                groups.setdefault(socket.remote.rpartition(":")[0], []).append((connection, index))
    return tuple(_verdict(facts, peer, group) for peer, group in groups.items())


def unanswered(s: Socket) -> bool:
    """Whether what this end has sent stays unacknowledged and was sent again."""
    silent = s.last_ack_age_ms is not None and s.last_ack_age_ms >= STUCK_MS
    again = (s.retransmits_now or 0) >= _AGAIN and bool(s.unacked)
    return s.state != "SYN-SENT" and silent and again and s.peer_window_bytes != 0


def _connects_in_vain(facts: Facts, connection: Connection, s: Socket) -> bool:
    if connection.debt is not Debt.CONNECTING or (s.retransmits_now or 0) < _AGAIN:
        return False
    # A full accept queue on this host drops the SYN.
    port = s.remote.rpartition(":")[2]
    return not any(str(item.port) == port and item.backlog for item in facts.listeners)


def _verdict(facts: Facts, peer: str, group: list[tuple[Connection, int]]) -> Verdict:
    sockets = [facts.snapshot.sockets[index] for _, index in group]
    at = shlex.quote(peer.strip("[]"))
    sure = any(s.retransmits_delta or (s.retransmits_now or 0) >= _SURELY for s in sockets)
    oldest = max((s.last_ack_age_ms for s in sockets if s.last_ack_age_ms is not None), default=None)
    since = "" if oldest is None else f" for {seconds(oldest)}"
    again = max(s.retransmits_now or 0 for s in sockets)
    connecting = sum(s.state == "SYN-SENT" for s in sockets)
    what = "get no answer to their connect" if connecting == len(sockets) else "have bytes that stay unacknowledged"
    return Verdict(
        code=Verdict.Code.NETWORK_STALLED,
        hop="network",
        summary=f"The network to {peer} does not answer: {count(len(sockets), 'connection')} {what}.",
        confidence=Level.HIGH if sure else Level.MEDIUM,
        evidence=(
            evidence(
                f"segments sent again {again} times, nothing acknowledged{since}",
                *(f"sockets[{index}]" for _, index in group),
            ),
        ),
        next_steps=(
            step(f"ping -c 3 {at}; tracepath {at}; ip route get {at}", "the path"),
            step(f"ss -tino dst {at}", "what is sent again, and since when"),
            step(
                "nft list ruleset; iptables-save",
                "firewalls and published ports on the way; a peer may also have gone away without closing",
            ),
        ),
        explains=sum(connection.stuck or connection.debt is Debt.CONNECTING for connection, _ in group),
        holder_address=peer,
    )
