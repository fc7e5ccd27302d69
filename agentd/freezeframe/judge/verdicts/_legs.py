"""The two legs of disaggregated requests, as one router's sockets show them."""

from __future__ import annotations

from dataclasses import dataclass

from freezeframe.judge.correlate.facts import Connection, Debt, Engine, Facts
from freezeframe.judge.verdicts._proof import leg_kind, stuck, worker_kinds


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """One router's connections to all engines of one kind."""

    kind: str
    engines: tuple[Engine, ...]
    # Owed for any time, and of these the ones that are old and silent.
    owed: tuple[Connection, ...]
    stuck: tuple[Connection, ...]
    # Answered, and the router has not read it.
    unread: tuple[Connection, ...]
    # Open without a debt or a moving byte: an idle keep-alive, or a stream between two chunks.
    quiet: tuple[Connection, ...]
    # Debts that cannot be told.
    unclear: tuple[Connection, ...]

    @property
    def pids(self) -> tuple[int, ...]:
        """HTTP processes of the engines on this host."""
        return tuple(pid for engine in self.engines for pid in engine.http_pids)

    @property
    def empty(self) -> bool:
        """Whether every engine of this kind is on this host and says that it has nothing but answers in progress."""
        return bool(self.engines) and all(_has_nothing(engine) for engine in self.engines)


def _has_nothing(engine: Engine) -> bool:
    """By its scheduler's numbers or idle sleep, or by the numbers of its HTTP layer."""
    return engine.accounted or engine.gauges.http_active == 0


def router_legs(facts: Facts, router: int) -> tuple[Leg, Leg] | None:
    """Prefill's and decode's leg; None when the router is not known to serve such a pair."""
    kinds: dict[str, list[Connection]] = {}
    for connection in facts.from_client(router):
        kinds.setdefault(leg_kind(facts, connection), []).append(connection)
    # A leg without any connection is known by an engine of its kind on this host, or by the router's word.
    known = {*kinds, *(engine.kind for engine in facts.engines), *worker_kinds(facts, router).values()}
    if not {"prefill", "decode"} <= known:
        return None
    prefill, decode = (_leg(facts, kind, kinds.get(kind, [])) for kind in ("prefill", "decode"))
    return prefill, decode


def _leg(facts: Facts, kind: str, connections: list[Connection]) -> Leg:
    return Leg(
        kind=kind,
        engines=tuple(engine for engine in facts.engines if engine.kind == kind),
        owed=tuple(c for c in connections if c.owed),
        stuck=tuple(stuck(connections, Debt.ANSWER)),
        unread=tuple(c for c in connections if c.debt is Debt.UNDELIVERED and not c.moving),
        quiet=tuple(c for c in connections if c.debt is Debt.NONE and not c.moving and not c.closed_by_server),
        unclear=tuple(c for c in connections if c.debt is Debt.UNKNOWN),
    )
