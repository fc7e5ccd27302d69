"""The documentation builds without a warning, and leaves out no command, verdict, collector, setting or finding."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from freezeframe.agentd import capabilities, config
from freezeframe.agentd.collectors import COLLECTORS
from freezeframe.client.cli import COMMANDS
from freezeframe.judge.model import Verdict
from tests.support.browser import chromium

DOCS = Path(__file__).resolve().parents[2] / "docs"
AGENT = DOCS.parent / "agentd/freezeframe/agentd"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "pages"
    subprocess.run([sys.executable, str(DOCS / "reference.py"), str(folder)], check=True)
    return folder


def headings(path: Path) -> set[str]:
    return set(re.findall(r"^## (.*)$", path.read_text(), re.MULTILINE))


def findings() -> set[str]:
    """Names of all capabilities: those that stand in the code, and those of a table there."""
    named = {each.name for each in capabilities.probe()}
    for path in AGENT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Capability":
                names = [each.value for each in node.keywords if each.arg == "name"]
                named |= {each.value for each in names if isinstance(each, ast.Constant)}
    return named


@pytest.fixture(scope="module")
def site(pages: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", str(DOCS / "mkdocs.yml"),
         "--site-dir", str(folder)],
        env={**os.environ, "FREEZEFRAME_DOCS": str(pages), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@pytest.mark.needs("docs")
def test_the_site_builds_without_a_warning(pages: Path, site: Path) -> None:
    built = {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")}
    assert built - {Path("404.md")} == {path.relative_to(pages) for path in pages.rglob("*.md")}


@pytest.mark.needs("docs", "chromium")
@pytest.mark.timeout(300)
def test_its_pages_fit_a_phone_and_a_desk_and_fetch_nothing_from_elsewhere(pages: Path, site: Path) -> None:
    asked: list[str] = []
    said: list[str] = []
    with chromium() as browser:
        shown = browser.new_page()
        shown.on("request", lambda request: asked.append(request.url))
        shown.on("console", lambda message: said.append(message.text))
        for name in sorted(path.relative_to(pages).with_suffix(".html") for path in pages.rglob("*.md")):
            shown.goto((site / name).as_uri())
            # At a desk nothing is scrolled aside; on a phone tables and the help of commands are.
            for width, kept in ((400, ".columns"), (1280, "nothing")):
                shown.set_viewport_size({"width": width, "height": 900})
                assert shown.evaluate("document.documentElement.scrollWidth") == width, name
                cut = shown.evaluate(
                    """kept => [...document.querySelectorAll("article pre > code")]
                        .filter(each => each.scrollWidth > each.clientWidth && !each.closest(kept)).length""",
                    kept,
                )
                assert cut == 0, (name, width)
    assert said == []
    assert [url for url in asked if not url.startswith(site.as_uri())] == []


def test_every_command_is_there(pages: Path) -> None:
    assert {f"freezeframe {command.name}" for command in COMMANDS} <= headings(pages / "reference/commands.md")


def test_every_verdict_is_there_with_its_proof(pages: Path) -> None:
    named = {name for heading in headings(pages / "reference/verdicts.md") for name in re.findall(r"[A-Z_]+", heading)}
    assert {code.name for code in Verdict.Code if code.value} - named == set()


def test_every_collector_is_there(pages: Path) -> None:
    assert {collector.name for collector in COLLECTORS} <= headings(pages / "reference/collectors.md")


def test_every_setting_is_there_with_what_it_is(pages: Path) -> None:
    text = (pages / "reference/agent.md").read_text()
    own = [kind for kind in vars(config).values() if getattr(kind, "__module__", "") == config.__name__]
    kinds = [config.Schedule, *filter(dataclasses.is_dataclass, own)]
    assert {config.Config, config.CaptureLimits, config.RoleOverride, config.Hook} <= {*kinds}
    for kind in kinds:
        for field in dataclasses.fields(kind):
            there = rf"^(## \[+{field.name}\]|\| `{field.name}` \|)"
            assert re.search(there, text, re.MULTILINE), (kind, field.name)
    assert re.findall(r"^\| `(\w+)` \|[^|]*\|\s*\|$", text, re.MULTILINE) == []


def test_every_finding_of_doctor_has_a_remedy(pages: Path) -> None:
    found = findings()
    assert {"root", "CAP_BPF", "recorder", "native stacks (libdw)", "copy", "TLS"} <= found
    assert found - headings(pages / "troubleshooting.md") == set()
