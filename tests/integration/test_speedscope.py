"""Exports in speedscope itself, in the distribution's chromium."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from freezeframe.client.export import speedscope, stacks
from freezeframe.v1 import snapshot_pb2
from tests.unit.test_export import SNAPSHOT

pytestmark = [pytest.mark.needs("chromium", "speedscope"), pytest.mark.timeout(180)]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: Any) -> None:
        """Nothing is to be told."""


@pytest.fixture
def table_of(tmp_path: Path) -> Iterator[Callable[[stacks.Stacks], list[str]]]:
    """Its table of functions, as it shows them: "total, self, name" of each."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - where it is installed

    folder = tmp_path / "speedscope"
    shutil.copytree(Path(shutil.which("speedscope") or "").resolve().parents[1] / "dist" / "release", folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])

            def read(chosen: stacks.Stacks) -> list[str]:
                (folder / "a.json").write_text("".join(speedscope.render(chosen)))
                address = f"http://127.0.0.1:{server.server_port}"
                page = browser.new_page()
                page.goto(f"{address}/index.html#profileURL={address}/a.json")
                page.wait_for_function("document.title.startsWith('gpu-07 2026')", timeout=120_000)
                # The view whose table is text.
                page.keyboard.press("3")
                page.wait_for_function("document.body.innerText.includes('Symbol Name')", timeout=60_000)
                return [" ".join(row.split()) for row in page.locator("tr").all_inner_texts()]

            yield read
            browser.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def snapshot() -> snapshot_pb2.Snapshot:
    return text_format.Parse(SNAPSHOT, snapshot_pb2.Snapshot())


def test_a_profile(table_of: Callable[[stacks.Stacks], list[str]]) -> None:
    rows = table_of(stacks.profile([snapshot()]))
    assert [row for row in rows if "add_one_req" in row or row.endswith(" main")] == [
        "1.80s (91%) 1.80s (91%) add_one_req",
        "1.98s (100%) 180.00ms (9.1%) main",
    ]


def test_an_instant(table_of: Callable[[stacks.Stacks], list[str]]) -> None:
    rows = table_of(stacks.instant([snapshot()]))
    assert "1 (50%) 1 (50%) futex_do_wait+0x10/0x20" in rows
    assert "1 (50%) 0 (<0.01%) thread 7 sglang::schedul" in rows
