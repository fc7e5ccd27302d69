"""What was measured on real engines: its part of tests/e2e/RESULTS.md."""

from __future__ import annotations

from dataclasses import dataclass

from tests.e2e.results import write_part


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One snapshot of one wedge."""

    engine: str
    wedge: str
    code: str
    holders: tuple[str, ...]
    got: str
    got_holders: tuple[str, ...]
    exact: bool
    confidence: str
    took_s: float

    @property
    def wrong(self) -> bool:
        """Whether it says something that is not so: another code, or the right one of somebody else."""
        return not self.exact and self.got != "UNDETERMINED"

    def row(self) -> str:
        """Of the table in Markdown."""
        how = "wrong" if self.wrong else "exact" if self.exact else "undetermined"
        expected, got = " ".join((self.code, *self.holders)), " ".join((self.got, *self.got_holders))
        return f"| {self.wedge} | {expected} | {got} | {self.confidence} | {how} | {self.took_s:.1f} s |"


class Results:
    """Outcomes of one run, in order."""

    def __init__(self) -> None:
        self._outcomes: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        self._outcomes.append(outcome)

    def write(self) -> None:
        """Keep one table per engine beside that of the stand-ins."""
        for engine in dict.fromkeys(outcome.engine for outcome in self._outcomes):
            lines = [
                "On the CPU behind sglang-router 0.3.2, 30 clients, one snapshot per wedge of tests/engines/wedges.py.",
                "",
                "| wedge | expected | got | confidence | | snap |",
                "|---|---|---|---|---|---|",
                *(outcome.row() for outcome in self._outcomes if outcome.engine == engine),
            ]
            write_part(f"Real {engine}", "make engines", "\n".join(lines))
