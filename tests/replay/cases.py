"""The cases: what each snapshot was taken of, by the word of the bed that it was taken of, and what is judged of it.

A case is recorded (on the bed or on real engines, tests/replay/corpus) or synthetic (written from what is known of a
wedge that cannot run here); the two are counted apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from freezeframe.judge import file, wire
from freezeframe.judge.model import Snapshot, Verdict
from freezeframe.judge.verdicts import conclude
from tests.support.field_scenes import FIELD
from tests.support.healthy_scenes import HEALTHY
from tests.support.wedged_scenes import WEDGED, holders_of

CORPUS = Path(__file__).with_name("corpus")
MANIFEST = CORPUS / "cases.json"
Code = Verdict.Code
QUIET = frozenset({Code.NOT_STUCK, Code.IDLE, Code.UNDETERMINED})


@dataclass(frozen=True, kw_only=True)
class Case:
    """One snapshot and the truth about it."""

    # Such as "decode-silent/smg/after".
    name: str
    # "bed", "engines" or "synthetic".
    kind: str
    # What may be said of it; of a healthy state that may be more than one.
    codes: frozenset[Code]
    # Pids that hold the requests, in order; empty where nobody here does.
    holders: tuple[int, ...]
    load: Callable[[], Snapshot]

    @property
    def healthy(self) -> bool:
        """Whether nobody may be accused."""
        return self.codes <= QUIET


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What was said of a case."""

    case: Case
    verdict: Verdict

    @property
    def how(self) -> str:
        """Tell "exact", "undetermined" or "wrong"."""
        holders = tuple(sorted(self.verdict.holder_pids))
        if self.verdict.code in self.case.codes and self.case.holders == holders:
            return "exact"
        return "undetermined" if self.verdict.code is Code.UNDETERMINED else "wrong"

    def row(self) -> str:
        """Of the table in Markdown."""
        expected = " or ".join(sorted(code.name for code in self.case.codes))
        confidence = self.verdict.confidence.name.lower()
        cells = (self.case.name, self.case.kind, expected, self.verdict.code.name, confidence, self.how)
        return f"| {' | '.join(cells)} |"


def judge(case: Case) -> Judged:
    verdict = conclude(case.load()).verdict
    assert verdict is not None
    return Judged(case=case, verdict=verdict)


def cases() -> list[Case]:
    """All of them, recorded ones first."""
    return [*recorded(), *synthetic()]


def recorded() -> list[Case]:
    entries = json.loads(MANIFEST.read_text()) if MANIFEST.exists() else []
    return [
        Case(
            name=entry["name"],
            kind=entry["kind"],
            codes=frozenset(Code[code] for code in entry["codes"]),
            holders=tuple(entry["holders"]),
            load=partial(read, CORPUS / entry["file"]),
        )
        for entry in entries
    ]


def synthetic() -> list[Case]:
    return [*(_wedged(name) for name in WEDGED), *(_of_the_field(name) for name in FIELD), *map(_healthy, HEALTHY)]


def _wedged(name: str) -> Case:
    code, build = WEDGED[name]
    snapshot = build().snapshot()
    return _synthetic(name, code, holders_of(name, snapshot.processes), snapshot)


def _of_the_field(name: str) -> Case:
    told = FIELD[name]()
    return _synthetic(name, told.code, told.holders, told.scene.snapshot())


def _healthy(name: str) -> Case:
    code, build = HEALTHY[name]
    return _synthetic(name, code, (), build().snapshot())


def _synthetic(name: str, code: Verdict.Code, holders: tuple[int, ...], snapshot: Snapshot) -> Case:
    return Case(
        name=name,
        kind="synthetic",
        codes=frozenset({code}),
        holders=tuple(sorted(holders)),
        load=lambda: snapshot,
    )


def read(path: Path) -> Snapshot:
    """One snapshot of a file, without a verdict."""
    (host,) = file.read(path.read_bytes()).hosts
    return wire.from_message(host, Snapshot)


def table(judged: list[Judged]) -> str:
    """All of them in Markdown, and the counts of each kind."""
    lines = ["| case | kind | expected | got | confidence | |", "|---|---|---|---|---|---|"]
    lines += [each.row() for each in judged]
    for kind in ("bed", "engines", "synthetic"):
        of_kind = [each for each in judged if each.case.kind == kind]
        if of_kind:
            healthy = sum(each.case.healthy for each in of_kind)
            counts = ", ".join(
                f"{sum(e.how == how for e in of_kind)} {how}" for how in ("exact", "undetermined", "wrong")
            )
            lines.append(f"\n{kind}: {len(of_kind)} cases, {healthy} of them healthy: {counts}.")
    return "\n".join(lines)
