"""Compares text with a committed file; FREEZEFRAME_GOLDEN=write writes the file instead, to be read before a commit."""

from __future__ import annotations

import os
from pathlib import Path

GOLDEN = Path(__file__).parent.parent / "golden"


def assert_golden(text: str, name: str) -> None:
    path = GOLDEN / name
    if os.environ.get("FREEZEFRAME_GOLDEN") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
