"""Writes tests/bench/RESULTS.md: one row per number, the newest measurement of each."""

from __future__ import annotations

import os
import platform
from datetime import datetime, timezone
from pathlib import Path

FILE = Path(__file__).with_name("RESULTS.md")
HEAD = """# Measured numbers

Written by `make bench`; a row is replaced when its number is measured again.

| what | measured | bar | how | where and when |
|---|---|---|---|---|
"""


def record(what: str, measured: str, bar: str, how: str) -> None:
    """Keep one number."""
    rows = {}
    if FILE.exists():
        for line in FILE.read_text().splitlines():
            if line.startswith("| ") and not line.startswith("| what"):
                rows[line.split("|")[1].strip()] = line
    day = datetime.now(tz=timezone.utc).date().isoformat()
    where = (
        f"{os.cpu_count()} cores, Linux {platform.release().split('-')[0]}, Python {platform.python_version()}, {day}"
    )
    rows[what] = f"| {what} | {measured} | {bar} | {how} | {where} |"
    FILE.write_text(HEAD + "".join(f"{row}\n" for row in rows.values()))
    print(f"{what}: {measured} (bar {bar})")
