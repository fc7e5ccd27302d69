"""Two snapshots of one host, some seconds apart, as users compare them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.bed.bed import Bed
from tests.support.command import freezeframe
from tests.support.daemon import Daemon, running_daemon

pytestmark = [pytest.mark.needs("root", "e2e"), pytest.mark.timeout(180)]


def captured(bed: Bed, agent: Daemon, folder: Path, name: str) -> None:
    done = freezeframe("snap", agent.address, "-o", name, cwd=folder)
    assert done.returncode in (0, 4), done.stderr


def difference(folder: Path, first: str, second: str) -> tuple[str, dict[str, Any]]:
    text = freezeframe("diff", first, second, cwd=folder)
    assert text.returncode == 0, text.stderr
    shown: dict[str, Any] = json.loads(freezeframe("--output", "json", "diff", first, second, cwd=folder).stdout)
    return text.stdout.splitlines()[0], shown


def run_steps(steps: list[str]) -> None:
    """Paste each as it stands; what only searches may find nothing."""
    commands = [step for step in steps if "  # " in step]
    assert commands
    for command in commands:
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=30)
        assert (done.returncode in (0, 1), done.stderr) == (True, ""), command


def test_what_hangs_is_the_same_and_what_was_let_go_is_gone(tmp_path: Path) -> None:
    with running_daemon() as agent, Bed.start("router-dual-leg") as bed:
        bed.wait_wedged(settled=True)
        captured(bed, agent, tmp_path, "1.ffz")
        captured(bed, agent, tmp_path, "2.ffz")
        headline, shown = difference(tmp_path, "1.ffz", "2.ffz")
        assert headline == f"same 30 requests, {shown['elapsed_ms'] / 1000:.1f} s older, nothing moved"
        assert (shown["nothing_moved"], shown["still"], shown["verdict_changed"]) == (True, 30, False)
        own = [each for each in shown["requests"] if each["of_client"]]
        assert {(each["state"], each["pid"]) for each in own} == {("same", bed.pids.router)}
        assert shown["process_counts"]["restarted"] == 0

        why = freezeframe("show", "1.ffz", "verdict", "--why", cwd=tmp_path).stdout
        assert (
            f"\nRules that stand\n  - ROUTER_DUAL_LEG (router pid {bed.pids.router}): HIGH, explains 30 requests\n"
            in why
        )
        verdict = json.loads(freezeframe("--output", "json", "show", "1.ffz", "verdict", cwd=tmp_path).stdout)[
            "verdict"
        ]
        run_steps(verdict["next_steps"])

        bed.enter("idle")
        bed.wait_wedged()
        captured(bed, agent, tmp_path, "3.ffz")
    headline, shown = difference(tmp_path, "2.ffz", "3.ffz")
    assert headline.startswith("30 requests gone, ")
    assert {each["state"] for each in shown["requests"] if each["of_client"]} == {"gone"}
    assert (shown["before"]["code"], shown["after"]["code"]) == ("ROUTER_DUAL_LEG", "IDLE")
    assert shown["nothing_moved"] is False
