"""Health seen through worse and worse eyes: cases where nothing is wrong, each with a few of its evidence taken away.

Whoever is accused then is accused wrongly. A seed gives the same replays again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from freezeframe.judge.model import Snapshot, Verdict
from freezeframe.judge.verdicts import conclude
from tests.replay.cases import QUIET, Case
from tests.replay.mutations import Mutation, mutations

SEED = 20261130
REPLAYS = 500
MOST_MUTATIONS = 3
# Sections whose records are lost one by one, as on a host where processes and connections come and go; a page of
# numbers comes as a whole.
_THINNED = ("sockets", "python_threads", "native_threads", "asyncio_tasks", "requests", "endpoints")
_LOST = (0.01, 0.03, 0.05)


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One case with evidence taken away, and what was said of it."""

    case: Case
    taken: tuple[str, ...]
    verdict: Verdict

    @property
    def accuses(self) -> bool:
        return self.verdict.code not in QUIET or bool(self.verdict.holder_pids)

    def line(self) -> str:
        verdict = self.verdict
        return f"{self.case.name} {list(self.taken)}: {verdict.code.name} {verdict.holder_pids}: {verdict.summary}"


def replays(cases: Sequence[Case], *, seed: int = SEED, count: int = REPLAYS) -> Iterator[Replay]:
    """`count` replays of healthy cases in an order of chance."""
    chance = random.Random(seed)
    healthy = [(case, case.load()) for case in cases if case.healthy]
    for _ in range(count):
        case, snapshot = chance.choice(healthy)
        taken = []
        for _ in range(chance.randint(0, MOST_MUTATIONS)):
            known = {**mutations(snapshot), **_thinnings(snapshot, chance)}
            name = chance.choice(sorted(known))
            taken.append(name)
            snapshot = known[name](snapshot)
        verdict = conclude(snapshot).verdict
        assert verdict is not None
        yield Replay(case=case, taken=tuple(taken), verdict=verdict)


def _thinnings(snapshot: Snapshot, chance: random.Random) -> dict[str, Mutation]:
    """Ways to lose some records of a section without a word of its collector."""
    return {f"some {section}": _thinning(section, chance) for section in _THINNED if getattr(snapshot, section)}


def _thinning(section: str, chance: random.Random) -> Mutation:
    def mutate(snapshot: Snapshot) -> Snapshot:
        share = chance.choice(_LOST)
        left = tuple(record for record in getattr(snapshot, section) if chance.random() >= share)
        return replace(snapshot, **{section: left})

    return mutate
