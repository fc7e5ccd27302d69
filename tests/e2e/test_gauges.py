"""Numbers of an engine whose event loop is dead, over the real router."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.bed.bed import Bed
from tests.support.command import freezeframe, snap
from tests.support.daemon import running_daemon

pytestmark = [pytest.mark.needs("root", "kernel", "e2e"), pytest.mark.timeout(180)]


def test_a_blocked_engine_is_read_without_asking_it(tmp_path: Path) -> None:
    with running_daemon() as agent, Bed.start(wedge="engine-loop-blocked") as bed:
        bed.wait_wedged()
        snapshot = snap(agent.address, cwd=tmp_path)
        decode = bed.pids.decode
    outcomes = {each["collector"]: each["status"] for each in snapshot["outcomes"]}
    assert outcomes["read_gauges"] == "OK"
    asked = {each["pid"]: each["status"] for each in snapshot["endpoints"] if each["purpose"] == "metrics"}
    assert asked[decode.http] == 0
    queues = [
        each for each in snapshot["metrics"] if each["pid"] == decode.scheduler and each["name"].endswith("_queue_reqs")
    ]
    assert len(queues) == 6
    for each in queues:
        assert each["source"] == "mmap"
        # While idle it writes them every 30 s, looking once a second.
        assert 0 <= each["age_ms"] < 40_000
    active = [each for each in snapshot["metrics"] if each["name"] == "sglang:http_requests_active"]
    assert {each["note"] for each in active} == {
        "falls when the headers go out, a stream's with its first token: streams that have begun are missing"
    }
    assert snapshot["verdict"]["code"] == "ENGINE_HTTP_BLOCKED"
    shown = freezeframe("show", str(max(tmp_path.glob("*.ffz"))), "metrics", cwd=tmp_path)
    assert "streams that have begun" in " ".join(shown.stdout.split())


def test_the_past_of_the_gauges_stands_under_the_bytes(tmp_path: Path) -> None:
    with Bed.start(wedge="none") as bed, running_daemon() as agent:
        wanted = {
            ("gauge", "sglang:num_running_reqs"),
            ("tokens", "sglang:realtime_tokens_total"),
            ("answer bytes", ""),
        }
        begin = time.monotonic()
        while True:
            series = snap(agent.address, "--window", "0", cwd=tmp_path).get("history", {}).get("series", ())
            found = {(each["kind"], each["subject"]) for each in series if each.get("pid") == bed.pids.decode.scheduler}
            found |= {("answer bytes", "") for each in series if each["kind"] == "answer bytes"}
            if wanted <= found:
                break
            assert time.monotonic() < begin + 90, f"the history shows no gauges: {found}"
            time.sleep(0.5)
        scheduler = bed.pids.decode.scheduler
    shown = freezeframe("show", str(max(tmp_path.glob("*.ffz"))), "history", cwd=tmp_path)
    assert f"decode {scheduler} sglang:num_running_reqs" in " ".join(shown.stdout.split())
    kinds = [line.strip().split("  ")[0] for line in shown.stdout.splitlines()]
    assert kinds.index("answer bytes") < kinds.index("gauge")
