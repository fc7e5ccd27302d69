from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from freezeframe.v1 import snapshot_pb2

duckdb: Any = importlib.import_module("duckdb") if importlib.util.find_spec("duckdb") else None
parquet: Any = None
if importlib.util.find_spec("pyarrow"):
    parquet = importlib.import_module("freezeframe.client.export.parquet")

pytestmark = pytest.mark.needs("parquet")

DOCS = Path(__file__).parents[2] / "docs" / "pages" / "tables.md"
SNAPSHOT = """
meta { snapshot_id: "gpu-07-1" host: "gpu-07" started_at: "2026-01-02T03:04:05.678Z" }
processes { pid: 7 role: SCHEDULER title: "sglang::scheduler"
  threads { tid: 7 name: "main" state: "R" state_after: "R" cpu_ms_delta: 900 }
  threads { tid: 8 name: "idle" state: "S" } }
processes { pid: 9 role: ROUTER title: "sglang::router" }
python_threads { pid: 7 tid: 7 name: "MainThread"
  frames { function: "run_batch" file: "/srv/scheduler.py" line: 40 }
  frames { function: "event_loop" file: "/srv/scheduler.py" line: 12 } }
sockets { family: "tcp" state: "LISTEN" local: "0.0.0.0:30000" pid: 9 fd: 3 backlog: 5 }
requests { pid: 9 fd: 21 side: SERVER method: "POST" path: "/generate" request_id: "r-1" age_ms: 7000
  upstream: "requests[1]" }
requests { side: SERVER request_id: "r-2" age_ms: 8000 at_least: true }
asyncio_tasks { pid: 9 name: "Task-1" waits_for { address: "0x7f" kind: "gather" } }
locks { pid: 7 address: "0x7f00" kind: "pthread_mutex" owner_tid: 7 waiters { tid: 8 since_ms: 12 } }
gpus { index: 0 name: "H100" power_watts: 71.5 throttle_reasons: "sw power cap" }
hops { name: "router" pids: 9 }
history { interval_ms: 1000 series { kind: "answer bytes" pid: 9 values: 100 values: nan values: 0 } }
verdict { code: ROUTER_HOLDS }
findings { code: ROUTER_HOLDS hop: "router" holder_pids: 9 confidence: HIGH explains: 30
  evidence { text: "owed" ref: "sockets[0]" } }
findings { code: DEADLOCK hop: "scheduler" confidence: LOW }
"""


def snapshot(**meta: str) -> snapshot_pb2.Snapshot:
    parsed = text_format.Parse(SNAPSHOT, snapshot_pb2.Snapshot())
    for name, value in meta.items():
        setattr(parsed.meta, name, value)
    return parsed


def export(folder: Path, *snapshots: snapshot_pb2.Snapshot) -> None:
    for name, data in parquet.render(snapshots):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def ask(folder: Path, sql: str) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        for table in filter(lambda name: name in sql, os.listdir(folder)):
            connection.execute(f"CREATE VIEW {table} AS SELECT * FROM read_parquet('{folder}/{table}/*.parquet')")
        return connection.execute(sql).fetchall()


def documented() -> Sequence[str]:
    return re.findall(r"```sql\n(.*?)```", DOCS.read_text(), re.DOTALL)


def test_every_table_has_the_rows_of_its_snapshot(tmp_path: Path) -> None:
    export(tmp_path, snapshot())
    own = "gpu-07-1", "gpu-07"
    assert ask(tmp_path, "SELECT DISTINCT snapshot, host, captured_at::VARCHAR FROM threads") == [
        (*own, ask(tmp_path, "SELECT ('2026-01-02 03:04:05.678+00'::TIMESTAMPTZ)::VARCHAR")[0][0])
    ]
    columns = "pid, process, role, tid, name, state, state_after, cpu_ms_delta, stack"
    assert ask(tmp_path, f"SELECT {columns} FROM threads") == [
        (7, "sglang::scheduler", "SCHEDULER", 7, "main", "R", "R", 900.0,
         ["event_loop (/srv/scheduler.py:12)", "run_batch (/srv/scheduler.py:40)"]),
        (7, "sglang::scheduler", "SCHEDULER", 8, "idle", "S", "", None, []),
    ]  # fmt: skip
    assert ask(tmp_path, "SELECT process, state, local, pid, backlog, peer_pid FROM sockets") == [
        ("sglang::router", "LISTEN", "0.0.0.0:30000", 9, 5, None)
    ]
    assert ask(tmp_path, "SELECT role, hop, side, request_id, age_ms, at_least, pid, upstream FROM requests") == [
        ("ROUTER", "router", "SERVER", "r-1", 7000.0, False, 9, ["requests[1]"]),
        (None, None, "SERVER", "r-2", 8000.0, True, None, []),
    ]
    assert ask(tmp_path, "SELECT name, waits_for FROM tasks") == [("Task-1", [{"address": "0x7f", "kind": "gather"}])]
    assert ask(tmp_path, "SELECT kind, owner_tid, waiters[1].tid, waiters[1].since_ms FROM locks") == [
        ("pthread_mutex", 7, 8, 12.0)
    ]
    assert ask(tmp_path, "SELECT name, power_watts, throttle_reasons FROM gpus") == [("H100", 71.5, ["sw power cap"])]
    assert ask(tmp_path, "SELECT kind, pid, date_diff('second', sampled_at, captured_at), value FROM series") == [
        ("answer bytes", 9, 2, 100.0),
        ("answer bytes", 9, 0, 0.0),
    ]
    assert ask(
        tmp_path, "SELECT place, code, hop, holder_pids, confidence, explains, evidence[1].ref FROM findings"
    ) == [
        (0, "ROUTER_HOLDS", "router", [9], "HIGH", 30, "sockets[0]"),
        (1, "DEADLOCK", "scheduler", [], "LOW", 0, None),
    ]


def test_snapshots_add_up_and_one_again_replaces_itself(tmp_path: Path) -> None:
    export(tmp_path, snapshot(), snapshot(snapshot_id="gpu-08-1", host="gpu-08"))
    export(tmp_path, snapshot())
    assert ask(tmp_path, "SELECT host, count(*) FROM requests GROUP BY host ORDER BY host") == [
        ("gpu-07", 2),
        ("gpu-08", 2),
    ]


def test_an_empty_snapshot_has_every_table(tmp_path: Path) -> None:
    export(tmp_path, text_format.Parse('meta { snapshot_id: "a" }', snapshot_pb2.Snapshot()))
    assert sorted(os.listdir(tmp_path)) == [
        "findings", "gpus", "locks", "requests", "series", "sockets", "tasks", "threads",
    ]  # fmt: skip
    assert ask(tmp_path, "SELECT count(*) FROM requests") == [(0,)]


@pytest.mark.parametrize("identity", ["../../etc/x", "/etc/x", "_hidden", ".hidden", "a\nb", ""])
def test_a_hostile_identity_names_a_plain_file(tmp_path: Path, identity: str) -> None:
    export(tmp_path, snapshot(snapshot_id=identity))
    (name,) = os.listdir(tmp_path / "threads")
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*\.parquet", name)
    assert [tmp_path / "threads" / name] == list(tmp_path.glob("threads/**/*.parquet"))


def test_hosts_of_one_file_with_one_name_keep_a_file_each() -> None:
    names = [name for name, _ in parquet.render([snapshot_pb2.Snapshot()] * 3) if name.startswith("gpus/")]
    assert names == ["gpus/snapshot.parquet", "gpus/snapshot-2.parquet", "gpus/snapshot-3.parquet"]


def test_text_from_a_target_is_escaped(tmp_path: Path) -> None:
    hostile = snapshot()
    hostile.processes[0].title = "a\x1b[2Jb"
    export(tmp_path, hostile)
    assert ask(tmp_path, "SELECT DISTINCT process FROM threads") == [("a\\x1b[2Jb",)]


def test_every_query_of_the_documentation_answers(tmp_path: Path) -> None:
    export(tmp_path, snapshot(), snapshot(snapshot_id="gpu-08-1", host="gpu-08", started_at="2026-01-02T04:30:00Z"))
    answers = [ask(tmp_path, sql) for sql in documented()]
    assert [row[1:] for row in answers[0]] == [("router", 1, 30), ("router", 1, 30)]
    assert answers[1] == [("ROUTER_HOLDS", "router", "HIGH", 2, ["gpu-07", "gpu-08"])]
    assert [row[:3] for row in answers[2]] == [(None, 8.0, "r-2"), ("router", 7.0, "r-1")]
    assert [row[:2] for row in answers[3]] == [("gpu-07", "gpu-07-1"), ("gpu-08", "gpu-08-1")]
    assert answers[4] == [("sglang::scheduler", "run_batch (/srv/scheduler.py:40)", 2)]
    assert answers[5] == [(each, 7, "0x7f00", "pthread_mutex", 7, 1) for each in ("gpu-07-1", "gpu-08-1")]


def test_the_documentation_has_every_table_and_what_is_not_a_message_s(tmp_path: Path) -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", DOCS.read_text(), re.MULTILINE))
    assert list(rows) == list(parquet.TABLES)
    for table, (columns, _) in parquet.TABLES.items():
        told = re.findall(r"`(\w+)`", rows[table])
        own = {name for name in told if name.islower()}
        messages = {name for name in told if not name.islower()}
        fields = {
            field.name
            for each in snapshot_pb2.Snapshot.DESCRIPTOR.file.dependencies
            for message in each.message_types_by_name.values()
            if message.name in messages
            for field in message.fields
        }
        assert own | fields == {name for name, _ in columns}, table
