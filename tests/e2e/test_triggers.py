"""Triggers and schedules over the real router: the bed wedges by itself, and nobody is there to snap."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.bed.bed import Bed
from tests.support.command import freezeframe
from tests.support.daemon import Daemon, running_daemon

pytestmark = [
    pytest.mark.needs("root", "kernel", "e2e"),
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        bool(os.environ.get("FREEZEFRAME_SHARED_MACHINE")), reason="a trigger sees what wedges beside this bed, too"
    ),
]

# A slow but healthy load is watched for so long; twenty minutes: FREEZEFRAME_HEALTHY_S=1200.
HEALTHY_S = float(os.environ.get("FREEZEFRAME_HEALTHY_S", "20"))


@contextmanager
def watching(folder: Path, when: str, *options: str) -> Iterator[Daemon]:
    """A daemon with an armed recorder and one trigger, "stuck"."""
    with running_daemon() as agent:
        give_up = time.monotonic() + 60
        while (done := freezeframe("watch", "--count", "1", agent.address, cwd=folder)).returncode != 0:
            assert time.monotonic() < give_up, done.stderr
        added = freezeframe("schedule", "add", "stuck", agent.socket("admin"), "--when", when, *options, cwd=folder)
        assert (added.returncode, added.stderr.splitlines()[-1:]) == (
            0, ["Added stuck. What it captures: freezeframe list --schedule stuck"],
        )  # fmt: skip
        yield agent


def kept(agent: Daemon, folder: Path, *options: str) -> list[dict[str, Any]]:
    """Snapshots of the trigger, oldest first."""
    done = freezeframe("--output", "json", "list", agent.address, "--schedule", "stuck", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    return list(reversed(json.loads(done.stdout)["snapshots"]))


def wait_for(agent: Daemon, folder: Path, count: int, timeout_s: float) -> list[dict[str, Any]]:
    give_up = time.monotonic() + timeout_s
    while len(found := kept(agent, folder)) < count:
        assert time.monotonic() < give_up, agent.log.read_text()[-3000:]
        time.sleep(0.2)
    return found


def values_of(agent: Daemon, folder: Path, snapshot_id: str, name: str) -> list[float]:
    freezeframe("get", snapshot_id, agent.address, "-o", f"{snapshot_id}.ffz", cwd=folder)
    done = freezeframe("--output", "json", "show", f"{snapshot_id}.ffz", "history", cwd=folder)
    return next(
        [float(value) for value in each["values"]]
        for each in json.loads(done.stdout)["history"]["series"]
        if (each["kind"], each["subject"]) == ("path", name)
    )


def test_the_bed_wedges_by_itself(tmp_path: Path) -> None:
    with watching(tmp_path, "stuck-for=5s", "--note", "on call") as agent, Bed.start(wedge="none") as bed:
        time.sleep(random.uniform(8.0, 15.0))
        assert kept(agent, tmp_path) == []
        bed.enter("router-dual-leg")
        bed.wait_wedged()
        truth = bed.truth()
        first = wait_for(agent, tmp_path, 1, 60)[0]
        looks = wait_for(agent, tmp_path, 3, 90)
        router = bed.pids.router
    sent = min(each.sent_at_wall for each in truth.requests)
    metas = [each["manifest"]["hosts"][0]["meta"] for each in looks]
    assert [meta["trigger"] for meta in metas] == ["trigger stuck-for=5s"] * 3
    fired = metas[0]["triggered"]
    assert (fired["condition"], fired["expression"], fired["looks"]) == ("stuck-for=5s", "longest_wait_s >= 5", 3)
    assert 5.0 <= float(fired["values"]["longest_wait_s"]) <= 10.0
    assert [meta["triggered"]["look"] for meta in metas] == [1, 2, 3]
    begun = [datetime.fromisoformat(meta["started_at"].replace("Z", "+00:00")).timestamp() for meta in metas]
    assert [round(each - begun[0]) for each in begun][1:] == [pytest.approx(5, abs=2), pytest.approx(30, abs=3)]
    # Threshold, then at most five seconds until the first is stored.
    assert begun[0] + metas[0]["duration_ms"] / 1000.0 - (sent + 5.0) <= 5.0
    assert [each["manifest"]["verdict"]["code"] for each in looks] == ["ROUTER_DUAL_LEG"] * 3
    assert looks[0]["manifest"]["verdict"]["holder_pids"] == [router]
    assert first["snapshot_id"] == looks[0]["snapshot_id"]


def test_what_the_trigger_saw_is_in_the_snapshot_and_shown(tmp_path: Path) -> None:
    with watching(tmp_path, "stuck-for=5s") as agent, Bed.start(wedge="engine-silent", clients=8, regular=True) as bed:
        bed.wait_wedged()
        first = wait_for(agent, tmp_path, 1, 60)[0]["snapshot_id"]
        waits = values_of(agent, tmp_path, first, "longest_wait_s")
        shown = freezeframe("show", f"{first}.ffz", cwd=tmp_path).stdout
        listed = freezeframe("list", agent.address, "--trigger", "stuck-for", "--limit", "1", cwd=tmp_path).stdout
        assert kept(agent, tmp_path, "--verdict", "IDLE") == kept(agent, tmp_path, "--note", "x") == []
        assert kept(agent, tmp_path, "--until", "1h") == []
        assert len(kept(agent, tmp_path, "--since", "1h")) >= 1
    assert waits[-1] >= 5.0
    assert sorted(waits[-3:]) == waits[-3:]
    assert "by trigger stuck (stuck-for=5s: longest_wait_s >= 5; longest_wait_s was " in " ".join(shown.split())
    assert "trigger stuck-for=5s, look" in " ".join(listed.split())


def test_a_process_that_ends_is_captured_at_once(tmp_path: Path) -> None:
    with watching(tmp_path, "process-exit") as agent, Bed.start(wedge="none", clients=8) as bed:
        # Until it is known.
        time.sleep(10)
        assert kept(agent, tmp_path) == []
        ended = time.time()
        scheduler = bed.pids.decode.scheduler
        bed.send_signal(scheduler, signal.SIGKILL)
        (first, *_) = wait_for(agent, tmp_path, 1, 60)
    meta = first["manifest"]["hosts"][0]["meta"]
    begun = datetime.fromisoformat(meta["started_at"].replace("Z", "+00:00")).timestamp()
    assert begun - ended <= 3.0
    assert meta["triggered"]["values"]["exits"] == "1"
    assert meta["triggered"]["values"]["ended"] == f"scheduler {scheduler}"
    assert first["manifest"]["verdict"]["code"] == "PROCESS_DEAD"


def test_a_process_that_is_stopped(tmp_path: Path) -> None:
    with watching(tmp_path, "process-stopped") as agent, Bed.start(wedge="router-stopped", clients=8) as bed:
        bed.wait_wedged()
        (first, *_) = wait_for(agent, tmp_path, 1, 60)
        assert first["manifest"]["verdict"]["code"] == "PROCESS_STOPPED"
        assert first["manifest"]["verdict"]["holder_pids"] == [bed.pids.router]


def test_connections_that_nobody_accepts(tmp_path: Path) -> None:
    with watching(tmp_path, "backlog") as agent, Bed.start(wedge="engine-not-accepting", clients=8) as bed:
        bed.wait_wedged()
        (first, *_) = wait_for(agent, tmp_path, 1, 60)
        assert first["manifest"]["verdict"]["code"] == "ENGINE_NOT_ACCEPTING"


@pytest.mark.timeout(HEALTHY_S + 200)
def test_a_slow_but_healthy_load_triggers_nothing(tmp_path: Path) -> None:
    with watching(tmp_path, "stuck-for=5s") as agent, Bed.start(wedge="slow-stream") as bed:
        bed.wait_wedged()
        for name, when in (("silent", "no-tokens-for=5s"), ("exit", "process-exit"), ("stopped", "process-stopped")):
            freezeframe("schedule", "add", name, agent.socket("admin"), "--when", when, cwd=tmp_path)
        seen = freezeframe("schedule", "add", "seen", agent.socket("admin"), "--when", "requests > 20", cwd=tmp_path)
        assert seen.returncode == 0
        give_up = time.monotonic() + HEALTHY_S
        while time.monotonic() < give_up:
            time.sleep(1)
        done = freezeframe("--output", "json", "list", agent.address, cwd=tmp_path)
        listed = [each["manifest"] for each in json.loads(done.stdout)["snapshots"]]
        # The requests were seen, and none of them was called stuck.
        assert {each["hosts"][0]["meta"]["schedule"] for each in listed} == {"seen"}, [
            (each["hosts"][0]["meta"]["triggered"], each["verdict"]["summary"]) for each in listed
        ]
