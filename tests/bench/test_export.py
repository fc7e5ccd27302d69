"""Tables of many snapshots: what a question over them takes, and what writing one snapshot takes."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import statistics
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from freezeframe.judge import wire
from freezeframe.judge.verdicts import conclude
from tests.bench.results import record
from tests.replay.cases import recorded
from tests.unit.test_export_parquet import ask, documented

parquet: Any = None
if importlib.util.find_spec("pyarrow"):
    parquet = importlib.import_module("freezeframe.client.export.parquet")

pytestmark = [pytest.mark.needs("bench", "parquet"), pytest.mark.timeout(600)]

SNAPSHOTS, RUNS = 200, 5
BEGAN = datetime(2026, 1, 2, tzinfo=timezone.utc)


def test_which_hop_held_requests_by_hour(tmp_path: Path) -> None:
    cases = recorded()
    took = []
    for number in range(SNAPSHOTS):
        snapshot = conclude(cases[number % len(cases)].load())
        assert snapshot.meta is not None
        moment = (BEGAN + timedelta(minutes=15 * number)).isoformat().replace("+00:00", "Z")
        meta = dataclasses.replace(snapshot.meta, snapshot_id=f"gpu-07-{number:03}", started_at=moment)
        message = wire.to_message(dataclasses.replace(snapshot, meta=meta))
        begin = time.perf_counter()
        for name, data in parquet.render([message]):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(data)
        took.append(1000.0 * (time.perf_counter() - begin))
    what = f"median of {SNAPSHOTS} of a bed, pyarrow"
    record("a snapshot as Parquet tables", f"{statistics.median(took):.0f} ms", "-", what)

    answers = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        rows = ask(tmp_path, documented()[0])
        answers.append(1000.0 * (time.perf_counter() - begin))
    assert len({hour for hour, *_ in rows}) > SNAPSHOTS / 4 / 2
    took_ms = statistics.median(answers)
    how = f"DuckDB, {SNAPSHOTS} snapshots, the view made anew; median of {RUNS}, {len(rows)} rows"
    record("which hop held requests, by hour", f"{took_ms:.0f} ms", "<= 1000 ms", how)
    assert took_ms <= 1000
