"""What a process calls itself reaches no terminal and no log as it is."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import freezeframe
from tests.support.daemon import running_daemon

pytestmark = [pytest.mark.needs("root", "e2e"), pytest.mark.timeout(300)]

EVIL = "\x1b]0;pwned\x07\x1b[31m\u202e\x9b"
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
PROGRAM = Path(__file__).parents[1] / "programs" / "hostile_router.py"


@pytest.fixture
def router(tmp_path: Path) -> Iterator[int]:
    folder = tmp_path / f"d{EVIL}"
    folder.mkdir()
    # A program whose own path is hostile.
    program = shutil.copy(PROGRAM, folder / f"router{EVIL}.py")
    child = subprocess.Popen(
        [sys.executable, program, f"--policy={EVIL}"],
        cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "SPT_NOENV": "1"},
    )  # fmt: skip
    assert child.stdout is not None
    _, pid = child.stdout.readline().split()
    yield int(pid)
    child.communicate()


def acts_on_a_terminal(text: str) -> set[str]:
    return {letter for letter in text if letter not in "\n\t" and unicodedata.category(letter) in _HIDDEN}


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


def test_no_output_and_no_log_has_a_control_character(router: int, tmp_path: Path) -> None:
    said: dict[str, str] = {}

    def run(*arguments: str) -> str:
        done = freezeframe(*arguments, cwd=tmp_path)
        assert done.returncode in (0, 1, 4), done.stderr
        said[f"stdout of {arguments}"], said[f"stderr of {arguments}"] = done.stdout, done.stderr
        return done.stdout

    config = tmp_path / "agentd.toml"
    config.write_text('[[roles]]\nrole = "router"\ntitle = "hostile-router"\n')
    with running_daemon("--config", str(config)) as agent:
        snapshot = json.loads(run("snap", "--output", "json", "-o", "one.ffz", agent.address))
        for output in ("text", "markdown", "brief"):
            run("--output", output, "snap", "-o", "two.ffz", agent.address)
            run("--output", output, "show", "one.ffz")
            run("--output", output, "list", agent.address)
        run("show", "one.ffz", "verdict", "--why")
        for section in (
            "findings", "hops", "requests", "sockets", "python", "metrics", "logs", "kernel", "host", "outcomes",
        ):  # fmt: skip
            run("show", "one.ffz", section)
        said["log of the agent"] = agent.log.read_text()
    found = {each["pid"]: each for each in snapshot["processes"]}
    assert router in found
    # It was looked at with all its words: in the title, the log, a unix socket, a stack.
    assert "pwned" in found[router]["title"]
    assert found[router]["role"] == "ROUTER"
    text = json.dumps(snapshot)
    for kind in ("log_requests", "log_sources", "sockets", "python_threads", "metrics"):
        assert any("pwned" in json.dumps(each) for each in snapshot[kind] if each.get("pid") == router), kind
    assert "hunter2" not in text
    # Escaped by the agent, where bytes became text.
    assert {word for word in strings(snapshot) if acts_on_a_terminal(word)} == set()
    # And by the client, whatever it is given.
    assert {where: acts_on_a_terminal(each) for where, each in said.items() if acts_on_a_terminal(each)} == {}
