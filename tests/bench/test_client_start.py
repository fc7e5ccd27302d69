"""How long the client takes until its request is with the agent, and for `--version`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from freezeframe.v1 import service_pb2
from tests.bench.results import record
from tests.support.canned_agent import Script, canned_agent, done_of
from tests.support.story import story_bytes

ROUNDS = 21
BAR_MS = 250.0
PROGRAM = str(Path(sys.executable).with_name("freezeframe"))


def summary(milliseconds: list[float]) -> str:
    ordered = sorted(milliseconds)
    return f"median {statistics.median(ordered):.0f} ms, p95 {ordered[int(len(ordered) * 0.95)]:.0f} ms"


@pytest.mark.needs("bench")
def test_client_start(tmp_path: Path) -> None:
    data = story_bytes()
    came: list[float] = []

    def capture(_request: object, _context: object) -> Iterator[service_pb2.CaptureEvent]:
        came.append(time.perf_counter())
        yield service_pb2.CaptureEvent(chunk=service_pb2.Chunk(data=data))
        yield service_pb2.CaptureEvent(done=done_of(data))

    def run(*arguments: str) -> float:
        begin = time.perf_counter()
        subprocess.run([PROGRAM, *arguments], cwd=tmp_path, stdout=subprocess.DEVNULL, check=False, timeout=60)
        return begin

    version, first_byte = [], []
    with canned_agent(Script(capture=capture)) as path:
        for _ in range(ROUNDS):
            begin = run("--version")
            version.append((time.perf_counter() - begin) * 1000.0)
            begin = run("-q", "snap", f"unix:{path}")
            first_byte.append((came[-1] - begin) * 1000.0)
    record("freezeframe --version", summary(version), "<= 250 ms", "whole process, interleaved with the next row")
    record("client start to its request at the agent", summary(first_byte), "<= 250 ms", "agent of the test's process")
    assert statistics.median(version) <= BAR_MS
    assert statistics.median(first_byte) <= BAR_MS
