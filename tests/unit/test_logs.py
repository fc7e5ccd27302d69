from __future__ import annotations

import fcntl
import io
import json
import os
import subprocess
import sys
import time

from freezeframe.agentd.audit import Audit, Call
from freezeframe.agentd.logs import LogWriter, make_logger

# Linux's; in fcntl from Python 3.10 on some builds only.
F_SETPIPE_SZ = 1031


def test_a_line_is_one_json_object() -> None:
    out = io.StringIO()
    make_logger(out).info("begun", pid=7)
    (line,) = out.getvalue().splitlines()
    record = json.loads(line)
    assert record.pop("timestamp").endswith("Z")
    assert record == {"event": "begun", "level": "info", "pid": 7}


def test_no_text_begins_a_line_or_steers_a_terminal() -> None:
    for terminal in (False, True):
        out = io.StringIO()
        make_logger(out, terminal=terminal).info("x", note='a\nb\x1b[2J\u202e\udc80"', items=["c\r\n"])
        assert out.getvalue().count("\n") == 1
        assert not set(out.getvalue()) & set("\r\x1b\u202e\udc80")


def test_an_exception_keeps_its_traceback() -> None:
    out = io.StringIO()
    try:
        int("a\x1bb")
    except ValueError:
        make_logger(out).exception("failed")
    record = json.loads(out.getvalue())
    assert record["exception"].splitlines()[0] == "Traceback (most recent call last):"
    assert record["exception"].splitlines()[-1] == "ValueError: invalid literal for int() with base 10: 'a\\x1bb'"


def test_the_level_is_kept() -> None:
    out = io.StringIO()
    make_logger(out, level="warning").info("x")
    assert out.getvalue() == ""


def test_a_reader_that_is_stuck_blocks_nobody() -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, F_SETPIPE_SZ, 4096)
    with os.fdopen(writing, "w") as stream, os.fdopen(reading, "rb") as pipe:
        writer = LogWriter(stream, queue_lines=10)
        logger = make_logger(writer)
        give_up = time.monotonic() + 30
        while writer._dropped < 1000 and time.monotonic() < give_up:
            logger.info("x", text="y" * 100)
        assert writer._dropped >= 1000
        assert not writer.drain(0.01)
        received = b""
        while b"log lines dropped" not in received:
            received += pipe.read1(65536)
            logger.info("more")
        os.set_blocking(pipe.fileno(), False)
        give_up = time.monotonic() + 10
        while not writer.drain(0.01) and time.monotonic() < give_up:
            pipe.read(1_000_000)
        assert writer.drain(1)


def test_a_closed_stderr_is_no_error() -> None:
    stream = io.StringIO()
    stream.close()
    writer = LogWriter(stream)
    make_logger(writer).info("x")
    assert writer.drain(10)


def test_one_audit_line_per_call() -> None:
    out = io.StringIO()
    Audit(make_logger(out)).record(
        Call(
            who="socket view", rpc="GetSnapshot", targets=("a\n{",), outcome="NOT_FOUND", detail="no", duration_ms=1.26
        ),
    )
    (line,) = out.getvalue().splitlines()
    record = json.loads(line)
    del record["timestamp"]
    assert record == {
        "event": "call",
        "level": "info",
        "who": "socket view",
        "rpc": "GetSnapshot",
        "targets": ["a\\x0a{"],
        "outcome": "NOT_FOUND",
        "detail": "no",
        "bytes": 0,
        "ms": 1.3,
    }


def test_a_flood_of_calls_is_counted() -> None:
    out = io.StringIO()
    now = 100.0
    audit = Audit(make_logger(out), clock=lambda: now)
    for _ in range(10_000):
        audit.record(Call(who="socket view", rpc="x", outcome="PERMISSION_DENIED"))
    assert len(out.getvalue().splitlines()) == 100
    now = 101.0
    audit.record(Call(who="socket view", rpc="x"))
    lines = [json.loads(line) for line in out.getvalue().splitlines()[100:]]
    assert [line["event"] for line in lines] == ["calls not written", "call"]
    assert lines[0]["count"] == 9_900
    assert sys.getsizeof(audit) < 1000


def test_a_process_that_forks_logs_without_a_thread() -> None:
    code = (
        "import structlog, threading; from freezeframe.agentd import logs; logs.configure('info');"
        "structlog.get_logger('x').info('begun', note='a\\nb'); structlog.get_logger('x').debug('no');"
        "assert threading.active_count() == 1"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    assert json.loads(line)["note"] == "a\\x0ab"
