"""Requests that a router, or a proxy, has read and passed on to nobody."""

from __future__ import annotations

from dataclasses import dataclass

from freezeframe.judge.correlate.facts import Connection, Debt, Facts
from freezeframe.judge.correlate.thresholds import ENGINE_KEEP_ALIVE_MS, slack
from freezeframe.judge.model import Evidence
from freezeframe.judge.verdicts._proof import leg_kind, runs, sends_both_legs, sockets_seen, stuck
from freezeframe.judge.verdicts._words import count, evidence, oldest, process_ref, seconds, socket_refs


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one router keeps; all of `down` is owed for STUCK_MS or longer."""

    router: int
    down: tuple[Connection, ...]
    upstream: tuple[Connection, ...]
    # Requests under way upstream; two legs of a pair count once.
    passed: int

    @property
    def count(self) -> int:
        """Requests that went no further."""
        return len(self.down) - self.passed

    @property
    def sure(self) -> bool:
        """Whether nothing at all is open upstream and both ends of each connection agree."""
        return not self.upstream and all(c.agreed for c in self.down)


def held(facts: Facts, router: int) -> Held | None:
    """What this router keeps; None when nothing is proved: see router_holds."""
    down = stuck(facts.to_server(router), Debt.ANSWER)
    upstream = facts.from_client(router)
    found = Held(router=router, down=tuple(down), upstream=upstream, passed=_passed_on(facts, upstream))
    if found.count < 1 or (found.passed and found.count <= slack(len(down))):
        return None
    if not runs(facts, router) or not sockets_seen(facts, router) or _multiplexed(facts, router, upstream):
        return None
    return found


def held_evidence(facts: Facts, found: Held) -> list[Evidence]:
    """Facts, with references."""
    age = seconds(oldest(found.down))
    read = f"it has read {count(len(found.down), 'request')}, the oldest owed for {age}"
    passed = f"{count(found.passed, 'request')} under way on {count(len(found.upstream), 'open connection')}"
    return [
        evidence(read, *socket_refs(found.down)),
        evidence(f"upstream it has {passed}", *(socket_refs(found.upstream) or process_ref(facts, found.router))),
    ]


def _passed_on(facts: Facts, upstream: tuple[Connection, ...]) -> int:
    kinds: dict[str, int] = {}
    for connection in upstream:
        if connection.debt is not Debt.NONE or connection.moving:
            kind = leg_kind(facts, connection)
            kinds[kind] = kinds.get(kind, 0) + 1
    pair = max(kinds.pop("prefill", 0), kinds.pop("decode", 0))
    return pair + sum(kinds.values())


def _multiplexed(facts: Facts, router: int, upstream: tuple[Connection, ...]) -> bool:
    """Whether one upstream connection may carry several requests."""
    lives = [c for c in upstream if not c.closed_by_server and not c.closed_by_client]
    quiet = [c.quiet_ms or 0.0 for c in lives if c.debt is Debt.NONE and not c.rests]
    if any(quiet_ms > ENGINE_KEEP_ALIVE_MS for quiet_ms in quiet):
        return True
    return any(c.moving for c in lives) and not sends_both_legs(facts, router)
