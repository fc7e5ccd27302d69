"""Captures by schedule, thousands of them: memory, descriptors, zombies and what is kept stay where they are.

Ten thousand: FREEZEFRAME_CAPTURES=10000 FREEZEFRAME_BENCH=1 pytest -s tests/bench/test_schedules.py; about half an hour
on two idle cores. Without it five hundred.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from freezeframe.agentd.host import Host, procfs
from tests.bench.results import record
from tests.bench.test_state import children
from tests.support.daemon import running_daemon

pytestmark = [pytest.mark.needs("root", "e2e", "bench")]

CAPTURES = int(os.environ.get("FREEZEFRAME_CAPTURES", "500"))
# Captured before anything is measured: caches fill.
WARM_UP = 100
SCHEDULES = 20
KEPT, MAX_SNAPSHOTS = 2, 30
BAR_MB = 1.0
CONFIG = f"""
[store]
max_snapshots = {MAX_SNAPSHOTS}

[[roles]]
role = "engine-http"
title = "small-target"
""" + "".join(
    f'[[schedules]]\nname = "s{number}"\nevery_s = 1\nwindow_s = 0\nkeep = {KEPT}\n' for number in range(SCHEDULES)
)
# A process with a title of its own and a listener.
TARGET = (
    "import socket, sys, setproctitle; setproctitle.setproctitle('small-target'); "
    "s = socket.create_server(('127.0.0.1', 0)); print('ready', flush=True); sys.stdin.read()"
)


def rss_mb(pids: list[int]) -> float:
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def descriptors(pids: list[int]) -> int:
    return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)


def zombies(pids: list[int]) -> list[int]:
    return [child for pid in pids for child in children(pid) if procfs.stat(Host().proc(child)).state == "Z"]


@pytest.mark.timeout(300 + CAPTURES * 2)
def test_scheduled_captures_leave_nothing_behind(tmp_path: Path) -> None:
    config = tmp_path / "agentd.toml"
    config.write_text(CONFIG)
    target = subprocess.Popen([sys.executable, "-c", TARGET], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert target.stdout is not None
    assert target.stdout.readline() == b"ready\n"
    samples: list[tuple[int, float, int]] = []
    try:
        with running_daemon("--config", str(config)) as agent:
            pids = [agent.pid, *children(agent.pid)]
            begin = time.monotonic()
            done = read = 0
            while done < WARM_UP + CAPTURES:
                with agent.log.open("rb") as stream:
                    stream.seek(read)
                    text = stream.read()
                whole = text[: text.rfind(b"\n") + 1]
                read += len(whole)
                done += whole.count(b'"rpc":"Capture"') + whole.count(b'"rpc": "Capture"')
                if done > WARM_UP:
                    samples.append((done, rss_mb(pids), descriptors(pids)))
                assert time.monotonic() < begin + 200 + CAPTURES * 2, agent.log.read_text()[-2000:]
                time.sleep(1)
            took_s = time.monotonic() - begin
            assert [agent.pid, *children(agent.pid)] == pids, "a child was started again"
            left = zombies(pids)
            kept = list((agent.state_dir / "snapshots").glob("*.ffz"))
    finally:
        target.communicate()
    slope = statistics.linear_regression([each[0] for each in samples], [each[1] for each in samples]).slope * 1000.0
    half = len(samples) // 2
    fds = [statistics.median(each[2] for each in part) for part in (samples[:half], samples[half:])]
    record(
        f"{CAPTURES:,} scheduled captures of a small target", f"{slope:+.2f} MB per 1,000", f"<= {BAR_MB:.0f} MB",
        f"RSS of all lasting processes {samples[0][1]:.0f} to {samples[-1][1]:.0f} MB, descriptors {fds[0]:.0f} to "
        f"{fds[1]:.0f}, zombies {len(left)}, {len(kept)} kept; {took_s / done:.2f} s each",
    )  # fmt: skip
    assert slope <= BAR_MB
    assert fds[1] - fds[0] <= 4
    assert left == []
    assert 1 <= len(kept) <= MAX_SNAPSHOTS
