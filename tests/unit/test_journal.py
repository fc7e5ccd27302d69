from __future__ import annotations

import io
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.host import journal
from freezeframe.agentd.host.container_lines import Line, unwrap
from freezeframe.agentd.host.journal import Entry, JournalError, parse_export

TEXT = (
    b"__CURSOR=s=1\n__REALTIME_TIMESTAMP=1796000001500000\n_PID=77\nMESSAGE=world=1\n\n"
    b"__REALTIME_TIMESTAMP=1796000000250000\nMESSAGE\n" + (9).to_bytes(8, "little") + b"\x1b[2mone\ntwo"[:9] + b"\n\n"
    b"__REALTIME_TIMESTAMP=1796000000000000\n_PID=77\n\n"
)


def test_entries_with_text_and_with_bytes() -> None:
    assert list(parse_export(io.BytesIO(TEXT))) == [
        Entry(1796000001.5, 77, b"world=1"), Entry(1796000000.25, 0, b"t"), Entry(1796000000.25, 0, b"\x1b[2mone"),
    ]  # fmt: skip


@given(st.binary(max_size=2000), st.integers(0, len(TEXT)))
def test_no_bytes_break_the_parser(data: bytes, place: int) -> None:
    list(parse_export(io.BytesIO(TEXT[:place] + data + TEXT[place:])))


def take(code: str, limit_s: float = 20.0, max_bytes: int = 1000) -> journal.Lines:
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            return journal._take(child, max_bytes, 100, limit_s)
        finally:
            child.kill()


def test_a_journalctl_that_hangs_is_given_up_and_what_it_said_is_kept() -> None:
    begin = time.monotonic()
    lines = take(f"import sys, time; sys.stdout.buffer.write({TEXT!r}); sys.stdout.flush(); time.sleep(60)", 2.0)
    assert time.monotonic() - begin < 30
    assert [entry.message for entry in lines.entries] == [b"one", b"t", b"world=1"]
    assert lines.missing == "what journalctl had not read within 2.0 s"


def test_a_journalctl_that_never_ends_is_read_up_to_the_cap() -> None:
    lines = take(f"import sys\nwhile True: sys.stdout.buffer.write({TEXT!r})", max_bytes=100)
    assert (lines.missing, lines.bytes_read <= 100) == ("older lines", True)


def test_what_journalctl_complains_of_is_told() -> None:
    with pytest.raises(JournalError, match=r"journalctl: No journal files were opened\\x1b"):
        take("import sys; sys.stderr.write('Hint: x\\nNo journal files were opened\\x1b\\n')")


DOCKER = b'{"log":"a\\u001b[2mb\\n","stream":"stderr","time":"2026-11-30T01:39:00.250000000Z"}'
MOMENT = 1796002740.25


def test_docker_and_cri_lines() -> None:
    assert unwrap("docker", [b"", b"[]", DOCKER, b'{"log": 7, "time": "x"}', DOCKER[:-3]]) == [Line(MOMENT, b"ab")]
    halves = [
        b"2026-11-30T03:39:00+02:00 stdout P a",
        b"2026-11-30T03:39:00+02:00 stderr F x",
        b"2026-11-30T03:39:00.25+02:00 stdout F b",
        b"2026-11-30T03:39:00.25+02:00 stdout",
        b"yesterday stdout F b",
    ]
    assert unwrap("cri", halves) == [Line(MOMENT - 0.25, b"x"), Line(MOMENT, b"ab")]


@given(st.sampled_from(["docker", "cri"]), st.lists(st.binary(max_size=200)), st.integers(0, len(DOCKER)))
def test_no_line_breaks_it(kind: str, lines: list[bytes], place: int) -> None:
    unwrap(kind, [*lines, DOCKER[:place] + b"".join(lines[:1]) + DOCKER[place:]])
