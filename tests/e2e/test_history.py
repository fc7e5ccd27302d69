"""The recorder's past in a snapshot, over the real router."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bed.bed import Bed
from tests.support.command import freezeframe, snap
from tests.support.daemon import running_daemon

pytestmark = [pytest.mark.needs("root", "kernel", "e2e"), pytest.mark.timeout(180)]


def seconds_of(snapshot: dict[str, Any], kind: str, client: int, server: int) -> list[float]:
    for each in snapshot.get("history", {}).get("series", ()):
        if (each["kind"], each.get("peer_pid"), each.get("pid")) == (kind, client, server):
            return [math.nan if value == "NaN" else float(value) for value in each["values"]]
    return []


def test_the_moment_at_which_the_tokens_stopped(tmp_path: Path) -> None:
    with running_daemon() as agent, Bed.start(wedge="none") as bed:
        harness, router, decode = bed.pids.harness, bed.pids.router, bed.pids.decode.http

        def look() -> list[float]:
            return seconds_of(snap(agent.address, "--window", "0", cwd=tmp_path), "answer bytes", harness, router)

        begin = time.monotonic()
        while not (flowing := look()):
            assert time.monotonic() < begin + 30, "the history shows no tokens"
        assert max(flowing) > 0
        bed.enter("stray-client")
        bed.wait_wedged(settled=True)
        wedged = time.monotonic()
        while time.monotonic() < wedged + 6:
            time.sleep(0.5)
        before = time.monotonic()
        snapshot = snap(agent.address, "--window", "0", cwd=tmp_path)
        stray = bed.pids.stray
    assert stray is not None
    stopped = next(
        each
        for each in snapshot["history"]["series"]
        if (each["kind"], each.get("peer_pid"), each.get("pid")) == ("answer bytes", harness, router)
    )
    assert 5_000 <= stopped["last_nonzero_age_ms"] <= 1000.0 * (before - wedged) + 15_000
    # Nothing came from then on, while the harness's 30 wait.
    assert set(seconds_of(snapshot, "answer bytes", harness, router)[-4:]) == {0.0}
    assert seconds_of(snapshot, "requests", harness, router)[-4:] == [30.0] * 4
    # The stray's tokens move round the router.
    assert min(seconds_of(snapshot, "answer bytes", stray, decode)[-4:]) > 0
    saved = max(tmp_path.glob("*.ffz"))
    shown = freezeframe("show", str(saved), "history", cwd=tmp_path)
    assert f"client {harness} > router {router}" in shown.stdout
