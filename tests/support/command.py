"""The client as users run it: a process of its own; and its commands in this one."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from freezeframe.client.cli import cli

# Until click 8.2 a test had to ask for stderr apart from stdout.
SEPARATE: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}


def run(*arguments: str) -> Result:
    """In this process; what it does not catch is raised."""
    return CliRunner(**SEPARATE).invoke(cli, arguments, catch_exceptions=False)


def freezeframe(*arguments: str, cwd: Path, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "freezeframe.client", *arguments],
        cwd=cwd, capture_output=True, text=True, check=False, timeout=timeout_s,
    )  # fmt: skip


def snap(address: str, *arguments: str, cwd: Path) -> dict[str, Any]:
    """The snapshot as JSON; fails with what the client said."""
    done = freezeframe("--output", "json", "snap", *arguments, address, cwd=cwd)
    assert done.returncode in (0, 4), f"exit {done.returncode}: {done.stderr}"
    snapshot: dict[str, Any] = json.loads(done.stdout)
    return snapshot
