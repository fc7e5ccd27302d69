from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from google.protobuf import text_format

from freezeframe.client.export import folded, pprof, speedscope, stacks
from freezeframe.client.export.stacks import Stacks
from freezeframe.v1 import snapshot_pb2

# From the npm package speedscope 1.25.0 (MIT), as the viewer's own documentation names it.
SPEEDSCOPE_SCHEMA = Path(__file__).parents[1] / "golden" / "speedscope-file-format-schema.json"
SNAPSHOT = """
meta { host: "gpu-07" started_at: "2026-01-02T03:04:05.678Z" }
processes { pid: 7 title: "sglang::scheduler" }
python_threads { pid: 7 tid: 7 name: "MainThread"
  frames { function: "run_batch" file: "/srv/scheduler.py" line: 40 }
  frames { function: "event_loop" file: "/srv/scheduler.py" line: 12 } }
python_threads { pid: 7 tid: 9 name: "watch;dog" frames { function: "wait" file: "/lib/threading.py" line: 3 } }
native_threads { pid: 7 tid: 7 name: "sglang::schedul"
  frames { function: "futex_wait" module: "libc.so.6" offset: 16 }
  frames { function: "_PyEval_EvalFrameDefault" module: "python3" offset: 32 }
  frames { module: "python3" offset: 48 }
  kernel_frames: "futex_do_wait+0x10/0x20" }
asyncio_tasks { pid: 8 name: "Task-7" awaits: "Future"
  frames { function: "outer" file: "a.py" line: 1 } frames { function: "inner" file: "a.py" line: 2 } }
asyncio_tasks { pid: 8 name: "Task-7" awaits: "Future"
  frames { function: "outer" file: "a.py" line: 1 } frames { function: "inner" file: "a.py" line: 2 } }
profile { pid: 7 tid: 7 name: "main" hz: 50 duration_ms: 2000 cpu_ms: 1990
  stacks { samples: 90 frames { function: "add_one_req" file: "policy.py" line: 5 python: true }
    frames { function: "main" file: "python3" } }
  stacks { samples: 9 frames { function: "main" file: "python3" } } }
"""


@pytest.fixture
def snapshots() -> list[snapshot_pb2.Snapshot]:
    return [text_format.Parse(SNAPSHOT, snapshot_pb2.Snapshot())]


def test_folded_has_every_thread_and_task(snapshots: list[snapshot_pb2.Snapshot]) -> None:
    assert "".join(folded.render(stacks.instant(snapshots))) == (
        "sglang::scheduler (pid 7);thread 7 sglang::schedul;python3+0x30;event_loop (scheduler.py:12);"
        "run_batch (scheduler.py:40);futex_wait;futex_do_wait+0x10/0x20 1\n"
        "sglang::scheduler (pid 7);thread 9 watch:dog;wait (threading.py:3) 1\n"
        "pid 8;task Task-7;outer (a.py:1);inner (a.py:2);[awaits Future] 2\n"
    )


def test_folded_of_a_profile_counts_samples(snapshots: list[snapshot_pb2.Snapshot]) -> None:
    assert "".join(folded.render(stacks.profile(snapshots))) == (
        "sglang::scheduler (pid 7);thread 7 main;main;add_one_req (policy.py:5) 90\n"
        "sglang::scheduler (pid 7);thread 7 main;main 9\n"
    )


def test_several_hosts_are_told_apart(snapshots: list[snapshot_pb2.Snapshot]) -> None:
    other = snapshot_pb2.Snapshot()
    other.CopyFrom(snapshots[0])
    other.meta.host = "gpu-08"
    lines = "".join(folded.render(stacks.profile([*snapshots, other]))).splitlines()
    assert [line.partition(" (")[0] for line in lines] == ["gpu-07 sglang::scheduler"] * 2 + [
        "gpu-08 sglang::scheduler"
    ] * 2


def test_hostile_names_stay_one_line(snapshots: list[snapshot_pb2.Snapshot]) -> None:
    snapshots[0].python_threads[1].frames[0].function = "a\nb\x1b[2J;c"
    assert "thread 9 watch:dog;a\\x0ab\\x1b[2J:c (threading.py:3) 1\n" in "".join(
        folded.render(stacks.instant(snapshots))
    )
    assert "\x1b" not in "".join(speedscope.render(stacks.instant(snapshots)))


def test_speedscope_of_an_instant(snapshots: list[snapshot_pb2.Snapshot]) -> None:
    document = json.loads("".join(speedscope.render(stacks.instant(snapshots))))
    frames = document["shared"]["frames"]
    assert (document["$schema"], document["name"]) == (speedscope.SCHEMA, "gpu-07 2026-01-02T03:04:05.678Z")
    assert [(p["type"], p["name"], p["unit"], p["endValue"], p["weights"]) for p in document["profiles"]] == [
        ("sampled", "sglang::scheduler (pid 7)", "none", 2, [1, 1]),
        ("sampled", "pid 8", "none", 2, [1, 1]),
    ]
    assert [[frames[index] for index in sample] for sample in document["profiles"][1]["samples"]] == [
        [
            {"name": "task Task-7"}, {"name": "outer", "file": "a.py", "line": 1},
            {"name": "inner", "file": "a.py", "line": 2}, {"name": "[awaits Future]"},
        ]
    ] * 2  # fmt: skip


def test_speedscope_of_a_profile(snapshots: list[snapshot_pb2.Snapshot]) -> None:
    document = json.loads("".join(speedscope.render(stacks.profile(snapshots))))
    (profile,) = document["profiles"]
    assert (profile["name"], profile["unit"]) == ("sglang::scheduler (pid 7), thread 7 main", "milliseconds")
    assert (profile["weights"], profile["endValue"]) == ([1800.0, 180.0], 1980.0)
    names = [[document["shared"]["frames"][index]["name"] for index in sample] for sample in profile["samples"]]
    assert names == [["main", "add_one_req"], ["main"]]


@pytest.mark.parametrize("chosen", [stacks.instant, stacks.profile])
def test_speedscope_s_own_schema_takes_it(
    snapshots: list[snapshot_pb2.Snapshot], chosen: Callable[..., Stacks]
) -> None:
    document = json.loads("".join(speedscope.render(chosen(snapshots))))
    jsonschema.validate(document, json.loads(SPEEDSCOPE_SCHEMA.read_text()))


def raw(data: bytes) -> str:
    """The wire without any description of it."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "--decode_raw"]
    return subprocess.run(command, input=gzip.decompress(data), capture_output=True, check=True).stdout.decode()


def test_pprof_of_a_profile_field_by_field(snapshots: list[snapshot_pb2.Snapshot]) -> None:
    data = pprof.render(stacks.profile(snapshots))
    assert data == pprof.render(stacks.profile(snapshots))
    strings = [
        "", "samples", "count", "cpu", "nanoseconds", "add_one_req", "policy.py", "main", "python3", "process",
        "sglang::scheduler (pid 7)", "thread", "thread 7 main", "pid", "tid",
    ]  # fmt: skip
    labels = "3 { 1: 9 2: 10 } 3 { 1: 11 2: 12 } 3 { 1: 13 3: 7 } 3 { 1: 14 3: 7 }"
    expected = (
        "1 { 1: 1 2: 2 } 1 { 1: 3 2: 4 } "
        # Packed numbers are bytes: locations 1 and 2; 90 samples of 20 ms, 9 samples.
        rf'2 {{ 1: "\001\002" 2: "Z\200\244\247\332\006" {labels} }} '
        rf'2 {{ 1: "\002" 2: "\t\200\252\352U" {labels} }} '
        "4 { 1: 1 4 { 1: 1 2: 5 } } 4 { 1: 2 4 { 1: 2 } } "
        "5 { 1: 1 2: 5 3: 5 4: 6 } 5 { 1: 2 2: 7 3: 7 4: 8 } "
        + " ".join(f'6: "{name}"' for name in strings)
        + " 10: 2000000000 11 { 1: 3 2: 4 } 12: 20000000"
    )
    assert raw(data).split() == expected.split()


def go_pprof(tmp_path: Path, data: bytes, *options: str) -> str:
    (tmp_path / "a.pb.gz").write_bytes(data)
    environment = {**os.environ, "PPROF_TMPDIR": str(tmp_path)}
    command = ["go", "tool", "pprof", *options, str(tmp_path / "a.pb.gz")]
    return subprocess.run(command, capture_output=True, check=True, text=True, env=environment).stdout


@pytest.mark.needs("go")
def test_go_s_pprof_reads_a_profile(snapshots: list[snapshot_pb2.Snapshot], tmp_path: Path) -> None:
    top = go_pprof(tmp_path, pprof.render(stacks.profile(snapshots)), "-top", "-unit=ms").splitlines()
    assert [" ".join(line.split()) for line in top if not line.startswith("File:")] == [
        "Type: cpu",
        "Duration: 2s, Total samples = 1980ms (99.00%)",
        "Showing nodes accounting for 1980ms, 100% of 1980ms total",
        "flat flat% sum% cum cum%",
        "1800ms 90.91% 90.91% 1800ms 90.91% add_one_req",
        "180ms 9.09% 100% 1980ms 100% main",
    ]


@pytest.mark.needs("go")
def test_go_s_pprof_reads_an_instant(snapshots: list[snapshot_pb2.Snapshot], tmp_path: Path) -> None:
    tags = go_pprof(tmp_path, pprof.render(stacks.instant(snapshots)), "-tags")
    told = [" ".join(line.split()) for line in tags.splitlines()]
    assert "thread: Total 4.0" in told
    assert "2.0 (50.00%): task Task-7" in told
    assert "2.0 (50.00%): sglang::scheduler (pid 7)" in told
