from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from freezeframe.agentd.collectors.read_logs import collect
from freezeframe.agentd.host import Clock, Host
from freezeframe.agentd.jobs import Caps, Job, Target
from freezeframe.judge.model import Process
from tests.bed.bed import Bed
from tests.support.cgroup import in_cgroup
from tests.support.reports import KeptReport

LINE = b'2026-11-30 01:39:00  INFO http_request{method=POST uri=/v1/x request_id="%d"}: started processing request\n'


@contextmanager
def writer(path: Path) -> Iterator[int]:
    """A process that holds `path` as its standard error, and a pipe as its standard output."""
    with path.open("ab") as stream:
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream,
        )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    yield child.pid
    child.communicate()


# Processes that began long ago, whatever this machine did.
LONG_AGO = Clock(boottime=lambda: 1e9)
CAPS = Caps()


def read(*pids: int, caps: Caps = CAPS, root: Path = Path("/"), clock: Clock = LONG_AGO) -> KeptReport:
    report = KeptReport()
    targets = tuple(Target(pid=pid, start_ticks=1, role=Process.Role.ROUTER) for pid in pids)
    collect(Job(job_id=1, collector="read_logs", targets=targets, caps=caps), Host(root=root, clock=clock), report)
    return report


def waiting(report: KeptReport) -> dict[str, float]:
    return {each.request_id: each.age_ms for each in report.snapshot().log_requests if not each.finished}


@pytest.mark.needs("root")
def test_a_file_is_read_and_a_pipe_is_named(tmp_path: Path) -> None:
    log = tmp_path / "router.log"
    log.write_bytes(b"\x1b[2m" + LINE % 1 + LINE % 2 + b"last line without end")
    # Of no service, whoever runs the tests.
    with writer(log) as pid, in_cgroup("freezeframe-test-nobody", pid):
        snapshot = read(pid).snapshot()
    file, pipe = snapshot.log_sources
    assert pipe.error == "a pipe: whoever reads it has the lines"
    assert (file.name, file.lines, file.bytes_skipped, file.error) == (str(log), 3, 0.0, "")
    assert [request.request_id for request in snapshot.log_requests] == ["1", "2"]


def test_a_large_file_stays_within_the_caps(tmp_path: Path) -> None:
    log = tmp_path / "router.log"
    with log.open("wb") as stream:
        stream.seek(1 << 30)
        stream.writelines([b"\n", *(LINE % number for number in range(5000))])
    with writer(log) as pid:
        begin = time.monotonic()
        snapshot = read(pid, caps=Caps(log_bytes=100_000, log_lines=700)).snapshot()
        assert time.monotonic() - begin < 5
    (file,) = [source for source in snapshot.log_sources if not source.error]
    assert file.lines == 700
    # A hole is no text.
    assert file.bytes_read + file.bytes_skipped == log.stat().st_size - (1 << 30)
    assert {request.request_id for request in snapshot.log_requests} == {str(number) for number in range(4300, 5000)}


def test_long_lines_are_cut_and_counted(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"x" * 20_000 + b"\n" + b"y\n")
    with writer(log) as pid:
        (file,) = [source for source in read(pid).snapshot().log_sources if not source.error]
    assert (file.lines, file.lines_cut) == (2, 1)


def test_a_deleted_file_is_still_read(tmp_path: Path) -> None:
    log = tmp_path / "router.log"
    log.write_bytes(LINE % 5)
    with writer(log) as pid:
        log.unlink()
        assert [request.request_id for request in read(pid).snapshot().log_requests] == ["5"]


def test_two_processes_with_one_log_are_read_once(tmp_path: Path) -> None:
    log = tmp_path / "router.log"
    log.write_bytes(LINE % 5)
    with writer(log) as one, writer(log) as two:
        snapshot = read(one, two).snapshot()
    assert len([source for source in snapshot.log_sources if not source.error]) == 1


def test_a_pid_that_is_gone_is_missed() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert read(child.pid).misses == {child.pid: "listing its descriptors: No such file or directory"}


@pytest.mark.needs("root", "e2e")
def test_the_real_router_names_its_unfinished_requests_with_their_ages() -> None:
    with Bed.start(wedge="router-dual-leg") as bed:
        truth = bed.wait_wedged()
        now = time.time()
        snapshot = read(bed.pids.router).snapshot()
        waiting = {request.request_id: request.age_ms for request in snapshot.log_requests if not request.finished}
        sent = {request.request_id: 1000.0 * (now - request.sent_at_wall) for request in truth.requests}
        assert waiting.keys() >= sent.keys()
        # The router writes whole seconds.
        assert all(abs(waiting[request_id] - age) < 2000.0 for request_id, age in sent.items())
        assert os.path.exists(f"/proc/{bed.pids.router}")
        print({finding.pattern: finding.count for finding in snapshot.log_findings})
