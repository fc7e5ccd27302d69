from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from freezeframe.agentd.collectors.read_debug_traces import READ_DEBUG_TRACES
from freezeframe.agentd.host import Clock, Host, nccl_ras
from freezeframe.judge.model import DebugTrace, Process
from tests.support.report import run, target
from tests.support.reports import KeptReport

pytestmark = pytest.mark.needs("root")

ROLE = Process.Role
STATUS = "NCCL version 2.28.3\nCommunicators... (0.00s)\n  Group 0: AllReduce counts differ\x1b[31m\n"


def look(**options: object) -> KeptReport:
    return run(READ_DEBUG_TRACES, [target(os.getpid(), role=ROLE.SCHEDULER)], **options)  # type: ignore[arg-type]


def of(kept: KeptReport, kind: str) -> list[DebugTrace]:
    return [trace for trace in kept.snapshot().debug_traces if trace.kind == kind]


@pytest.fixture
def ras(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[dict[str, str]], list[str]]]:
    """Something on loopback that answers lines as NCCL does; gives what it was asked."""
    listener = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(nccl_ras, "PORT", listener.getsockname()[1])
    threads: list[threading.Thread] = []

    def serve(answers: dict[str, str]) -> list[str]:
        asked: list[str] = []

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rw", newline="\n") as stream:
                for line in stream:
                    asked.append(line.strip())
                    reply = answers.get(asked[-1])
                    if reply is None:
                        return
                    stream.write(reply)
                    stream.flush()
                    if "STATUS" in asked[-1]:
                        return

        threads.append(threading.Thread(target=answer))
        threads[-1].start()
        return asked

    yield serve
    for thread in threads:
        thread.join(20)
    listener.close()


def test_the_status_of_nccls_ras(ras: Callable[[dict[str, str]], list[str]]) -> None:
    answers = {"CLIENT PROTOCOL 2": "SERVER PROTOCOL 3\n", "TIMEOUT 1": "OK\n", "VERBOSE STATUS": STATUS}
    asked = ras(answers)
    (found,) = of(kept := look(), "nccl ras")
    assert asked == ["CLIENT PROTOCOL 2", "TIMEOUT 1", "VERBOSE STATUS"]
    assert (found.pid, found.path) == (os.getpid(), f"127.0.0.1:{nccl_ras.PORT}")
    assert found.text == ("NCCL version 2.28.3\nCommunicators... (0.00s)\n  Group 0: AllReduce counts differ\\x1b[31m")
    assert kept.misses == {}


def test_somebody_else_on_its_port(ras: Callable[[dict[str, str]], list[str]]) -> None:
    asked = ras({"CLIENT PROTOCOL 2": "HTTP/1.1 400 Bad Request\n"})
    kept = look()
    assert (asked, of(kept, "nccl ras")) == (["CLIENT PROTOCOL 2"], [])
    assert "no NCCL answers there" in kept.misses[os.getpid()]


def test_a_service_that_is_silent_costs_its_time_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setattr(nccl_ras, "PORT", listener.getsockname()[1])
        begin = time.monotonic()
        kept = look()
        assert 1.5 < time.monotonic() - begin < 10.0
    assert "timed out" in kept.misses[os.getpid()]


def test_dumps_of_the_flight_recorder_with_their_age() -> None:
    path = Path(f"/tmp/nccl_trace_rank_{os.getpid()}")
    path.write_bytes(b"x" * 1009)
    os.utime(path, (1_000_000, 1_000_000))
    link = Path(f"/tmp/nccl_trace_rank_{os.getpid()}0")
    link.symlink_to(path)
    try:
        kept = look(host=Host(clock=Clock(wall=lambda: 1_000_041.0)))
    finally:
        link.unlink()
        path.unlink()
    (found,) = [trace for trace in of(kept, "flight recorder") if trace.path.startswith(str(path))]
    assert (found.path, found.age_ms, found.size_bytes) == (str(path), 41_000.0, 1009.0)


def test_the_pipe_for_core_dumps_is_named_and_not_touched(tmp_path: Path) -> None:
    pipe = tmp_path / f"corepipe.cuda.host.{os.getpid()}"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        (found,) = of(look(), "cuda core pipe")
        # Nobody has opened it to write: its end is reached.
        assert os.read(reader, 1) == b""
    finally:
        os.close(reader)
    assert (found.pid, found.path, found.text) == (os.getpid(), str(pipe), "")
