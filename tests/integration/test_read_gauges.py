from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest

from freezeframe.agentd.collectors.read_gauges import READ_GAUGES
from freezeframe.agentd.collectors.sample_metrics import SAMPLE_METRICS
from freezeframe.agentd.gathered import Gathered
from freezeframe.agentd.host import Clock, Host
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import Metric, Outcome, Process
from tests.support.launching import real_workers
from tests.support.report import run, target
from tests.support.reports import KeptReport
from tests.support.stall import stalled_file, stalled_process

pytestmark = pytest.mark.needs("root")

ROLE = Process.Role
PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "blocked_exporter.py"


class Exporter:
    """The program, its scheduler and what it wrote last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        )
        assert self.process.stdout is not None
        known = json.loads(self.process.stdout.readline())
        self.scheduler: int = known["scheduler"]

    def tell(self, **command: object) -> tuple[float, float]:
        """Have it write; between which times it did."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(command), file=self.process.stdin, flush=True)
        before, after = json.loads(self.process.stdout.readline())
        return before, after

    def targets(self) -> list[object]:
        return [
            target(self.process.pid, role=ROLE.ENGINE_HTTP, product="sglang", python="3.11"),
            target(self.scheduler, role=ROLE.SCHEDULER, product="sglang", python="3.11"),
        ]

    def read(self, **options: object) -> KeptReport:
        return run(READ_GAUGES, self.targets(), **options)  # type: ignore[arg-type]

    def file(self, kind: str) -> Path:
        return self.folder / f"{kind}_{self.scheduler}.db"


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    one = Exporter(tmp_path)
    yield one
    os.kill(one.scheduler, signal.SIGKILL)
    one.process.kill()
    one.process.communicate()


def by_name(kept: KeptReport) -> dict[str, Metric]:
    return {metric.name: metric for metric in kept.snapshot().metrics}


def test_values_and_ages_while_the_http_loop_is_blocked(exporter: Exporter) -> None:
    """Ages are right to 10 ms: a clock that stands still where the writer's was tells them exactly."""
    before, after = exporter.tell(do="write", running=29)
    asked = run(SAMPLE_METRICS, exporter.targets()[:1])  # type: ignore[arg-type]
    assert [(one.path, one.status) for one in asked.snapshot().endpoints] == [("/model_info", 0), ("/metrics", 0)]
    now = time.time()
    kept = exporter.read(host=Host(clock=Clock(wall=lambda: now)))
    found = by_name(kept)
    assert set(found) == {"sglang:num_running_reqs", "sglang:generation_tokens_total", "sglang:http_requests_active"}
    running = found["sglang:num_running_reqs"]
    assert (running.value, running.labels, running.pid) == (29.0, (("tp_rank", "0"),), exporter.scheduler)
    assert (running.source, running.delta) == ("mmap", None)
    assert running.age_ms is not None
    assert (now - after) * 1000 - 10 <= running.age_ms <= (now - before) * 1000 + 10
    tokens, active = found["sglang:generation_tokens_total"], found["sglang:http_requests_active"]
    assert (tokens.value, tokens.age_ms) == (7.0, None)
    assert (active.value, active.labels, active.pid) == (30.0, (("method", "POST"),), exporter.process.pid)
    assert (kept.misses, kept.partials) == ({}, [])
    assert sorted(kept.finished) == sorted((exporter.process.pid, exporter.scheduler))


def test_what_changes_over_the_window(exporter: Exporter) -> None:
    exporter.tell(do="write", running=29)
    written: list[tuple[float, float]] = []

    def sleep(seconds: float) -> None:
        assert seconds == 1.0
        written.append(exporter.tell(do="write", running=31))

    found = by_name(exporter.read(host=Host(clock=Clock(sleep=sleep)), window_ms=1000.0))
    assert len(written) == 1
    deltas = {name: (metric.value, metric.delta) for name, metric in found.items()}
    assert deltas == {
        "sglang:num_running_reqs": (31.0, 2.0),
        "sglang:generation_tokens_total": (14.0, 7.0),
        "sglang:http_requests_active": (30.0, 0.0),
    }


def test_a_stopped_scheduler_is_read_as_well_and_its_gauges_grow_old(exporter: Exporter) -> None:
    before, after = exporter.tell(do="write", running=29)
    os.kill(exporter.scheduler, signal.SIGSTOP)
    later = time.time() + 100
    age = by_name(exporter.read(host=Host(clock=Clock(wall=lambda: later))))["sglang:num_running_reqs"].age_ms
    os.kill(exporter.scheduler, signal.SIGCONT)
    assert age is not None
    assert (later - after) * 1000 - 10 <= age <= (later - before) * 1000 + 10


def test_a_file_that_grows(exporter: Exporter) -> None:
    """It doubles and is mapped anew; the descriptor leads to the file all the same."""
    exporter.tell(do="write", running=1)
    size = exporter.file("gauge_mostrecent").stat().st_size
    written: list[object] = []

    def sleep(_seconds: float) -> None:
        written.append(exporter.tell(do="grow", series=2000))

    kept = exporter.read(host=Host(clock=Clock(sleep=sleep)), window_ms=1.0)
    assert exporter.file("gauge_mostrecent").stat().st_size > size
    paused = {m.labels: m.value for m in kept.snapshot().metrics if m.name == "sglang:num_paused_reqs"}
    assert paused == {(("dp_rank", str(rank)),): float(rank) for rank in range(2000)}
    assert kept.misses == {}


def test_a_file_that_has_no_name_any_more(exporter: Exporter) -> None:
    exporter.tell(do="write", running=5)
    exporter.file("gauge_mostrecent").unlink()
    assert by_name(exporter.read())["sglang:num_running_reqs"].value == 5.0


@pytest.mark.parametrize(
    ("end", "why"),
    [(b"\x40\x00\x00\x00half", "8 bytes at its end are no entry"), (b"\xff" * 64, "does not end in it")],
)
def test_a_half_written_entry_hides_none_that_is_whole(exporter: Exporter, end: bytes, why: str) -> None:
    exporter.tell(do="write", running=3)
    with exporter.file("gauge_mostrecent").open("r+b") as stream, mmap.mmap(stream.fileno(), 0) as data:
        (used,) = struct.unpack_from("<i", data)
        data[used : used + len(end)] = end
        struct.pack_into("<i", data, 0, used + len(end))
        kept = exporter.read()
        struct.pack_into("<i", data, 0, used)
    assert by_name(kept)["sglang:num_running_reqs"].value == 3.0
    assert why in kept.misses[exporter.scheduler]


def test_files_of_dead_processes_are_left_out(exporter: Exporter) -> None:
    """One lies in the folder; another is still open here since a fork, as it is in a real engine."""
    exporter.tell(do="write", running=3)
    dead = subprocess.Popen(["true"])
    dead.wait()
    for pid in (dead.pid, 1):
        (exporter.folder / f"gauge_mostrecent_{pid}.db").write_bytes(exporter.file("gauge_mostrecent").read_bytes())
    with (exporter.folder / f"gauge_mostrecent_{dead.pid}.db").open("rb"):
        kept = run(READ_GAUGES, [*exporter.targets(), target(os.getpid(), role=ROLE.ENGINE_HTTP)])  # type: ignore[list-item]
    values = [(m.pid, m.value) for m in kept.snapshot().metrics if m.name == "sglang:num_running_reqs"]
    assert values == [(exporter.scheduler, 3.0)]


# Writes a series with prometheus_client, maps its file once more, and closes every descriptor of it.
MAPPED = """
import ctypes, glob, os, sys
from prometheus_client import Gauge
Gauge("sglang:http_requests_active", "a", multiprocess_mode="livesum").set(4)
(path,) = glob.glob(os.environ["PROMETHEUS_MULTIPROC_DIR"] + "/*.db")
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
fd = os.open(path, os.O_RDONLY)
libc.mmap(None, 4096, 1, 1, fd, 0)
for each in os.listdir("/proc/self/fd"):
    if os.path.exists(f"/proc/self/fd/{each}") and os.readlink(f"/proc/self/fd/{each}") == path:
        os.close(int(each))
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_mapped_file_that_is_not_open(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", MAPPED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    found = by_name(run(READ_GAUGES, [target(child.pid, role=ROLE.ENGINE_HTTP, python="3.11")]))
    child.communicate()
    assert (found["sglang:http_requests_active"].value, found["sglang:http_requests_active"].pid) == (4.0, child.pid)


def test_a_pid_of_somebody_else() -> None:
    gone = run(READ_GAUGES, [target(2**22 - 1, role=ROLE.SCHEDULER)])
    assert (gone.misses, gone.finished) == ({}, [2**22 - 1])


def snapshot_file(slots: list[bytes], *, lengths: list[int] | None = None) -> bytes:
    size = 16 * 1024
    data = struct.pack("<4sHHI", b"SLNS", 2, len(slots), size)
    for number, slot in enumerate(slots):
        length = len(slot) if lengths is None else lengths[number]
        data += (struct.pack("<I", length) + slot).ljust(size, b"\0")
    return data


def load(rank: int, at: float, **known: object) -> bytes:
    sections = {"queues": [3, 0, 0, 0, 0], "disaggregation": ["decode", 0, 0, 1, 25, 0, 0.0, 0.0]}
    packed: bytes = msgpack.packb({"timestamp": at, "dp_rank": rank, **sections, **known})
    return packed


def test_load_snapshots_of_two_ranks_and_one_that_never_wrote() -> None:
    path = Path(f"/dev/shm/sglang_loads_test_{os.getpid()}.shm")
    now = time.time()
    path.write_bytes(
        snapshot_file([load(0, now - 2.5, num_running_reqs=7), load(1, now - 0.25), msgpack.packb({"dp_rank": 2})])
    )
    try:
        with path.open("rb"):
            me = target(os.getpid(), role=ROLE.SCHEDULER, product="sglang")
            kept = run(READ_GAUGES, [me], host=Host(clock=Clock(wall=lambda: now)))
    finally:
        path.unlink()
    found = {(m.name, dict(m.labels)["dp_rank"]): (m.value, round(m.age_ms or 0)) for m in kept.snapshot().metrics}
    assert {m.source for m in kept.snapshot().metrics} == {"load snapshot"}
    assert found["load_num_running_reqs", "0"] == (7.0, 2500)
    assert found["load_num_running_reqs", "1"] == (0.0, 250)
    assert found["load_disaggregation_decode_transfer_queue_reqs", "1"] == (25.0, 250)
    assert found["load_queues_waiting", "0"] == (3.0, 2500)
    assert {rank for _, rank in found} == {"0", "1"}
    assert kept.misses == {}


def test_a_slot_that_is_being_written_is_read_again() -> None:
    path = Path(f"/dev/shm/sglang_loads_torn_{os.getpid()}.shm")
    whole = load(0, time.time(), num_running_reqs=7)
    path.write_bytes(snapshot_file([whole], lengths=[0]))
    tries = []

    def sleep(_seconds: float) -> None:
        tries.append(1)
        if len(tries) == 2:
            path.write_bytes(snapshot_file([whole]))

    try:
        with path.open("rb"):
            me = target(os.getpid(), role=ROLE.SCHEDULER, product="sglang")
            kept = run(READ_GAUGES, [me], host=Host(clock=Clock(sleep=sleep)))
            path.write_bytes(b"another format entirely")
            other = run(READ_GAUGES, [me])
    finally:
        path.unlink()
    assert by_name(kept)["load_num_running_reqs"].value == 7.0
    assert (len(tries), kept.misses) == (2, {})
    assert "is not known" in other.misses[os.getpid()]


HOLD = "import os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); print('ready', flush=True); sys.stdin.read()"


@pytest.mark.needs("fuse")
async def test_a_file_on_dead_storage_costs_its_own_process_alone(exporter: Exporter, tmp_path: Path) -> None:
    """Read in real workers: the one that hangs is given up, the numbers of the others are there."""
    exporter.tell(do="write", running=29)
    folder = tmp_path / "dead"
    folder.mkdir()
    with stalled_file(folder) as stall:
        # The holder's pid is in the name; it opens the file once it is bound there.
        code = "import sys; print('up', flush=True); sys.argv[1] = sys.stdin.readline().strip();" + HOLD
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        holder = subprocess.Popen([sys.executable, "-c", code, ""], text=True, **pipes)  # type: ignore[call-overload]
        assert holder.stdout.readline() == "up\n"
        bound = tmp_path / f"gauge_livesum_{holder.pid}.db"
        bound.touch()
        subprocess.run(["mount", "--bind", stall.path, str(bound)], check=True)
        try:
            holder.stdin.write(f"{bound}\n")
            holder.stdin.flush()
            assert holder.stdout.readline() == "ready\n"
            targets = (target(holder.pid, role=ROLE.SCHEDULER), *exporter.targets())
            job = Job(job_id=1, collector=READ_GAUGES.name, targets=targets, deadline_ms=6_000.0)  # type: ignore[arg-type]
            gathered = Gathered()
            async with real_workers() as workers:
                outcome = await workers.run(READ_GAUGES, job, on_part=gathered.add, on_doing=lambda _what, _done: None)
        finally:
            stall.release()
            holder.kill()
            holder.communicate()
            subprocess.run(["umount", "--lazy", str(bound)], check=True)
    assert (outcome.status, outcome.pids_missed) == (Outcome.Status.PARTIAL, (holder.pid,))
    assert f"reading {bound} of {holder.pid}" in outcome.detail
    values = {metric.name: metric.value for metric in gathered.records("metrics")}
    assert values["sglang:num_running_reqs"] == 29.0


@pytest.mark.needs("fuse")
def test_mappings_of_a_process_whose_memory_is_stuck_are_left_alone(tmp_path: Path) -> None:
    with stalled_process(tmp_path) as pid:
        kept = run(READ_GAUGES, [target(pid, role=ROLE.SCHEDULER, python="3.11")])
    assert kept.misses == {pid: f"thread {pid} waits for the memory lock in mmap: left alone"}
