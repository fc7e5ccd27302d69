"""What waits to be taken in by a server: connections not accepted, requests not read."""

from __future__ import annotations

from dataclasses import dataclass

from freezeframe.judge.correlate.facts import Connection, Debt, Facts, Listener
from freezeframe.judge.correlate.thresholds import STARTING_MS, STUCK_MS
from freezeframe.judge.model import Evidence
from freezeframe.judge.verdicts._proof import gets_bytes, stuck
from freezeframe.judge.verdicts._words import count, evidence, oldest, seconds, socket_refs


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """One server's intake; all of it has waited for STUCK_MS or longer."""

    unaccepted: tuple[Connection, ...]
    unread: tuple[Connection, ...]
    # Listeners with a backlog that did not shrink.
    listeners: tuple[Listener, ...]

    @property
    def waiting(self) -> int:
        """Requests that wait to be taken in."""
        return len(self.unaccepted) + len(self.unread)


def intake(facts: Facts, pid: int) -> Intake:
    """What waits at one process. A server that sent bytes to anybody of late reads: then unread bytes are no sign."""
    served = facts.to_server(pid)
    alive = gets_bytes(served) or any(c.last_down_ms is not None and c.last_down_ms < STUCK_MS for c in served)
    unaccepted = tuple(stuck(served, Debt.UNACCEPTED))
    return Intake(
        unaccepted=unaccepted,
        unread=() if alive else tuple(stuck(served, Debt.UNREAD)),
        listeners=tuple(item for item in facts.listeners if item.pid == pid and _stands(item, facts, unaccepted)),
    )


def _stands(listener: Listener, facts: Facts, unaccepted: tuple[Connection, ...]) -> bool:
    if not listener.backlog:
        return False
    if facts.two_looks:
        return listener.backlog_after is not None and listener.backlog_after >= listener.backlog
    return any(c.server_address.endswith(f":{listener.port}") for c in unaccepted)


def has_served(facts: Facts, pid: int) -> bool:
    """Whether the process is past its start: old enough, or it has accepted a connection that is still there."""
    if facts.processes[pid].age_ms >= STARTING_MS:
        return True
    return any(c.debt is not Debt.UNACCEPTED for c in facts.to_server(pid))


def intake_evidence(found: Intake) -> list[Evidence]:
    """Facts, with references."""
    proved = []
    for listener in found.listeners:
        limit = f" of {listener.limit}" if listener.limit else ""
        text = f"accept queue of {listener.address}: {listener.backlog}{limit}"
        later = f", {listener.backlog_after} at the second look" if listener.backlog_after is not None else ""
        proved.append(evidence(text + later, f"sockets[{listener.index}]"))
    if found.unaccepted:
        age = seconds(oldest(found.unaccepted))
        text = f"{count(len(found.unaccepted), 'connection')} with a request not accepted for {age}"
        proved.append(evidence(text, *socket_refs(found.unaccepted)))
    if found.unread:
        text = f"{count(len(found.unread), 'request')} not read for {seconds(oldest(found.unread))}"
        proved.append(evidence(text, *socket_refs(found.unread)))
    return proved
