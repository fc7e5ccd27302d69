"""The distribution's chromium, driven by playwright."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """Run it without a window; for tests that need "chromium"."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - where it is installed

    with sync_playwright() as playwright:
        # Tests run as root, which chromium's sandbox refuses.
        launched = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield launched
        launched.close()
