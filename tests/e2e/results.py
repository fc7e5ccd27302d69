"""The table as it was measured: counts per wedge and router, written to RESULTS.md by a strict run."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path

from tests.e2e.table import Expected

RESULTS = Path(__file__).with_name("RESULTS.md")


class Results:
    """Outcomes of one run; a wrong verdict is counted and fails its test."""

    def __init__(self) -> None:
        self._expected: dict[tuple[str, str], Expected] = {}
        self._counts: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
        self._healthy: dict[tuple[str, str], Counter[str]] = {}

    def add(self, wedge: str, router: str, when: str, expected: Expected, *, exact: bool, undetermined: bool) -> None:
        """One capture of a wedge, by an agent that was there "before" it or came "after"."""
        self._expected[wedge, router] = expected
        outcome = "exact" if exact else "undetermined" if undetermined else "wrong"
        self._counts.setdefault((wedge, router), Counter())[when, outcome] += 1

    def add_healthy(self, state: str, router: str, code: str) -> None:
        """One capture of a healthy state in which nobody was accused."""
        self._healthy.setdefault((state, router), Counter())[code] += 1

    def share_of_exact(self) -> float:
        """Of all captures of wedges; 1 when there are none."""
        total = Counter[str]()
        for counts in self._counts.values():
            for (_, outcome), count in counts.items():
                total[outcome] += count
        return total["exact"] / max(1, total.total()) if total else 1.0

    def text(self) -> str:
        """The table in Markdown."""
        lines = [
            "| wedge | router | expected | agent before: exact, undetermined, wrong | agent after |",
            "|---|---|---|---|---|",
        ]
        for (wedge, router), counts in sorted(self._counts.items()):
            expected = self._expected[wedge, router]
            cells = [
                ", ".join(str(counts[when, outcome]) for outcome in ("exact", "undetermined", "wrong"))
                for when in ("before", "after")
            ]
            lines.append(f"| {wedge} | {router} | {expected.code} {expected.holder} | {cells[0]} | {cells[1]} |")
        lines += ["", "| healthy state | router | codes |", "|---|---|---|"]
        for (state, router), codes in sorted(self._healthy.items()):
            lines.append(f"| {state} | {router} | {', '.join(f'{code} {n}' for code, n in codes.items())} |")
        return "\n".join(lines)

    def write(self) -> None:
        """Keep the table beside the tests."""
        share = f"Exact: {self.share_of_exact():.1%} of the captures of wedges.\n\n"
        write_part("Wedge x router", "make e2e", share + self.text())


def write_part(title: str, command: str, text: str) -> None:
    """Replace the part of RESULTS.md under this title, which `command` measured today; keep the others."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    old = RESULTS.read_text(encoding="utf-8") if RESULTS.exists() else ""
    parts = re.split(r"^(?=# )", old, flags=re.MULTILINE)
    kept = [part.strip() for part in parts if part.strip() and not part.startswith(f"# {title}, as ")]
    own = f"# {title}, as `{command}` measured it on {now}\n\n{text.strip()}"
    RESULTS.write_text("\n\n".join(sorted([*kept, own], reverse=True)) + "\n", encoding="utf-8")
