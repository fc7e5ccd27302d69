"""A Report that keeps what a collector hands over, for collectors run in the test's own process."""

from __future__ import annotations

from freezeframe.agentd.gathered import Gathered
from freezeframe.judge.model import Snapshot


class KeptReport:
    def __init__(self) -> None:
        self.gathered = Gathered()
        self.doings: list[str] = []
        self.parts = 0
        self.finished: list[int] = []
        self.misses: dict[int, str] = {}
        self.partials: list[tuple[str, str]] = []

    def doing(self, what: str) -> None:
        self.doings.append(what)

    def part(self, part: Snapshot) -> None:
        self.parts += 1
        self.gathered.add(part)

    def done(self, pid: int) -> None:
        self.finished.append(pid)

    def missed(self, pid: int, why: str) -> None:
        self.misses[pid] = why

    def partial(self, detail: str, hint: str = "") -> None:
        self.partials.append((detail, hint))

    def snapshot(self) -> Snapshot:
        return self.gathered.snapshot()
