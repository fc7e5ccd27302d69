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


@pytest.mark.needs("docs")
def test_the_site_builds_without_a_warning(pages: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", str(DOCS / "mkdocs.yml"),
         "--site-dir", str(tmp_path / "site")],
        env={**os.environ, "FREEZEFRAME_DOCS": str(pages), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    built = {path.relative_to(tmp_path / "site").with_suffix(".md") for path in (tmp_path / "site").rglob("*.html")}
    assert built - {Path("404.md")} == {path.relative_to(pages) for path in pages.rglob("*.md")}


def test_every_command_is_there(pages: Path) -> None:
    assert {f"freezeframe {command.name}" for command in COMMANDS} <= headings(pages / "reference/commands.md")


def test_every_verdict_is_there_with_its_proof(pages: Path) -> None:
    named = {name for heading in headings(pages / "reference/verdicts.md") for name in re.findall(r"[A-Z_]+", heading)}
    assert {code.name for code in Verdict.Code if code.value} - named == set()


def test_every_collector_is_there(pages: Path) -> None:
    assert {collector.name for collector in COLLECTORS} <= headings(pages / "reference/collectors.md")


def test_every_setting_is_there(pages: Path) -> None:
    text = (pages / "reference/agent.md").read_text()
    for field in dataclasses.fields(config.Config):
        assert f"`{field.name}`" in text or f"## [{field.name}]" in text
    for field in dataclasses.fields(config.CaptureLimits):
        assert f"| `{field.name}` | `" in text


def test_every_finding_of_doctor_has_a_remedy(pages: Path) -> None:
    found = findings()
    assert {"root", "CAP_BPF", "recorder", "native stacks (libdw)", "copy", "TLS"} <= found
    assert found - headings(pages / "troubleshooting.md") == set()
