"""What is shipped for Prometheus, Grafana, systemd and Kubernetes names what there is."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from freezeframe.judge.model import RecorderState, Snapshot
from tests.unit.test_metrics import Told

PACKAGING = Path(__file__).resolve().parents[2] / "packaging"
RULES = PACKAGING / "prometheus/freezeframe.rules.yml"
SCRIPT = PACKAGING / "capture-before-restart.sh"


def names() -> set[str]:
    """Names of all samples that the endpoint can have."""
    told = Told()
    told.feed.take(Snapshot(recorder=RecorderState()), lambda _values, _now, _told: None, asyncio.Event())
    told.feed._values |= {"stopped": 0.0}
    found = set()
    for family in text_string_to_metric_families(told.metrics.text().decode()):
        # A family with labels has no sample before its first one.
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found |= {family.name + suffix for suffix in suffixes}
    return found


def test_the_dashboard_and_the_rules_ask_for_metrics_that_there_are() -> None:
    dashboard = json.loads((PACKAGING / "grafana/freezeframe.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [each["query"] for each in dashboard["templating"]["list"] if each["type"] == "query"]
    rules = re.findall(r"^ *expr: (.*)$", RULES.read_text(), re.MULTILINE)
    assert len(queries) >= 10
    assert len(rules) == 5
    for query in (*queries, *rules):
        asked = set(re.findall(r"freezeframe_\w+", query))
        assert asked, query
        assert asked <= names(), query
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (package prometheus)")
def test_promtool_takes_the_rules() -> None:
    done = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert (done.returncode, "5 rules found" in done.stdout) == (0, True), done.stdout + done.stderr


@pytest.mark.parametrize("client", ["exec sleep 60", "trap '' TERM; while :; do sleep 0.1; done", "exit 3", None])
def test_capturing_before_a_restart_never_fails_and_takes_three_seconds_at_most(
    tmp_path: Path, client: str | None
) -> None:
    """A client that hangs, will not end, fails, or is not there."""
    if client is not None:
        (tmp_path / "freezeframe").write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\n{client}\n')
        (tmp_path / "freezeframe").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    before = time.monotonic()
    done = subprocess.run([str(SCRIPT), "x.service"], env=environment, capture_output=True, text=True, check=False)
    # 2.9 s of its own, and what a busy machine takes to start it.
    assert time.monotonic() - before < 3.0 + 5.0
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("tmp.")] == []
    if client is not None:
        assert "--note before-restart x.service" in (tmp_path / "asked").read_text()


def test_what_is_to_be_run_may_be() -> None:
    assert os.access(SCRIPT, os.X_OK)
    for name in ("systemd/capture-before-restart.conf", "kubernetes/capture-before-restart.yaml"):
        assert "/usr/lib/freezeframe/capture-before-restart.sh" in (PACKAGING / name).read_text()
