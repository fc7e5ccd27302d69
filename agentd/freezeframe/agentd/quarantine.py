"""Which targets are left alone because a worker is still stuck on them. Pure bookkeeping, no clock, no I/O.

A worker counts from the moment it is killed until it has ended: milliseconds, as a rule, and as long as the fault
lasts when it is stuck beyond SIGKILL.
"""

from __future__ import annotations

from dataclasses import dataclass

from freezeframe.agentd.collectors.contract import Collector, Tier

# Killed workers that may live at once in the memory tier.
MEMORY_TIER_CAP = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """One worker that was killed and has not ended."""

    worker_pid: int
    collector: str
    # The targets it was stuck on; empty = none (a collector over the whole host) or unknown.
    targets: frozenset[int]


class Quarantine:
    """The abandoned workers, and what follows from them."""

    def __init__(self, cap: int = MEMORY_TIER_CAP) -> None:
        """Allow at most `cap` in the memory tier."""
        self._cap = cap
        self._abandoned: dict[int, tuple[Abandoned, Tier]] = {}

    def add(self, abandoned: Abandoned, tier: Tier) -> None:
        """Count a worker that was killed."""
        self._abandoned[abandoned.worker_pid] = (abandoned, tier)

    def remove(self, worker_pid: int) -> None:
        """Forget a worker that has ended; one that was never counted is no error."""
        self._abandoned.pop(worker_pid, None)

    def workers(self) -> tuple[Abandoned, ...]:
        """Give all that have not ended."""
        return tuple(abandoned for abandoned, _ in self._abandoned.values())

    def refusal(self, collector: Collector, target: int = 0) -> str:
        """Say why no worker may be started for this target (0 = for this collector); empty when one may."""
        if collector.tier is Tier.LOCK_FREE:
            return ""
        memory = sum(tier is Tier.MEMORY for _, tier in self._abandoned.values())
        if collector.tier is Tier.MEMORY and memory >= self._cap:
            return f"quarantined: {memory} killed workers have not ended, stuck in reads of sick processes"
        for abandoned, _ in self._abandoned.values():
            if abandoned.collector != collector.name:
                continue
            if target in abandoned.targets:
                return f"quarantined: worker {abandoned.worker_pid} was killed over it and has not ended"
            # Over targets, a worker that was stuck on none known bars nothing but counts.
            if not target and not abandoned.targets and collector.wants is None:
                return f"quarantined: worker {abandoned.worker_pid} was killed and has not ended"
        return ""
