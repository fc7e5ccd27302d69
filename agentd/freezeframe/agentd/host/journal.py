"""Lines of a systemd unit or a container from the journal, through `journalctl`, which comes with every journal.

Asked for this boot only and newest first, so that however large the journal is no more than the caps is read. The
export format, since JSON turns a message with colour codes into a list of numbers.
"""

from __future__ import annotations

import glob
import os
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, NamedTuple

from freezeframe.agentd.host import Host
from freezeframe.agentd.host.log_tail import LINE_BYTES, plain
from freezeframe.agentd.host.procfs import ProcfsError, read_file
from freezeframe.agentd.host.text import escape

_PROGRAMS = ("/usr/bin/journalctl", "/bin/journalctl")
_FIELDS = "MESSAGE,_PID"
# Persistent and volatile journals, of this machine and of its log namespaces.
_FILES = ("var/log/journal/*/*.journal", "run/log/journal/*/*.journal")
# Of one field: what is longer is no log line.
_VALUE_BYTES = 1 << 20


class JournalError(Exception):
    """The journal cannot be read; the sentence says why."""


class Entry(NamedTuple):
    """One line."""

    # When the journal got it, seconds since the epoch.
    time: float
    # Who wrote it; 0 when not told.
    pid: int
    message: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The last lines."""

    # Oldest first, colour codes stripped.
    entries: tuple[Entry, ...]
    bytes_read: int
    lines_cut: int
    # Why the oldest are missing; empty when none is.
    missing: str


def read_journal(
    host: Host, matches: tuple[str, ...], *, since: float, max_bytes: int, max_lines: int, limit_s: float
) -> Lines:
    """Read what matches one of `matches` ("_SYSTEMD_UNIT=router.service"), from `since` on. Raises JournalError."""
    program = next((each for each in _PROGRAMS if os.access(each, os.X_OK)), "")
    if not program:
        raise JournalError("there is no journalctl here")
    files = [str(host.root / each) for each in _FILES if glob.glob(str(host.root / each))]
    if not files:
        raise JournalError("there is no journal here")
    boot = _boot(host)
    # A match of the same field is an "or", one of another field an "and"; "+" is the "or" between these groups.
    wanted = [part for match in matches for part in ("+", *boot, match)][1:]
    options = ["--output=export", f"--output-fields={_FIELDS}", "--reverse", "--no-pager", "--quiet"]
    command = [program, *options, f"--since=@{max(0.0, since):.0f}", *(f"--file={each}" for each in files), *wanted]
    try:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"LC_ALL": "C"}
        ) as child:
            try:
                return _take(child, max_bytes, max_lines, limit_s)
            finally:
                child.kill()
    except OSError as error:
        raise JournalError(f"running journalctl: {error.strerror}") from error


def _boot(host: Host) -> list[str]:
    try:
        boot = read_file(host.proc("sys/kernel/random/boot_id")).decode("ascii", "replace")
    except ProcfsError:
        return []
    return [f"_BOOT_ID={boot.strip().replace('-', '')}"]


def _take(child: subprocess.Popen[bytes], max_bytes: int, max_lines: int, limit_s: float) -> Lines:
    entries: list[Entry] = []
    size = cut = 0
    missing = ""
    assert child.stdout is not None  # noqa: S101 - pipes were asked for
    assert child.stderr is not None  # noqa: S101
    too_long = threading.Event()

    def end() -> None:
        too_long.set()
        child.kill()

    timer = threading.Timer(limit_s, end)
    timer.start()
    try:
        for entry in parse_export(child.stdout):
            if size + len(entry.message) >= max_bytes or len(entries) >= max_lines:
                missing = "older lines"
                break
            size += len(entry.message) + 1
            cut += len(entry.message) > LINE_BYTES
            entries.append(entry._replace(message=plain(entry.message[:LINE_BYTES])))
        if too_long.is_set():
            missing = f"what journalctl had not read within {limit_s:.1f} s"
        elif not entries and (said := child.stderr.read(2000).splitlines()):
            raise JournalError(f"journalctl: {escape(said[-1], 200)}")
    finally:
        timer.cancel()
    entries.reverse()
    return Lines(entries=tuple(entries), bytes_read=size, lines_cut=cut, missing=missing)


def parse_export(stream: IO[bytes]) -> Iterator[Entry]:
    """Parse the journal's export format, newest entry first; the lines of one message come last line first.

    A field is "NAME=value", or, of a value with control characters, "NAME", its length in 8 bytes and the value.
    """
    fields: dict[bytes, bytes] = {}
    while line := stream.readline(_VALUE_BYTES):
        name, equals, value = line.rstrip(b"\n").partition(b"=")
        if not name:
            yield from _entries(fields)
            fields = {}
        elif equals:
            fields[name] = value
        else:
            size = int.from_bytes(stream.read(8), "little")
            fields[name] = stream.read(min(size, _VALUE_BYTES))
            left = size - _VALUE_BYTES
            while left > 0 and (piece := stream.read(min(left, _VALUE_BYTES))):
                left -= len(piece)
            stream.read(1)


def _entries(fields: dict[bytes, bytes]) -> Iterator[Entry]:
    stamp, pid = fields.get(b"__REALTIME_TIMESTAMP", b""), fields.get(b"_PID", b"")
    if b"MESSAGE" not in fields or not stamp.isdigit():
        return
    for line in reversed(fields[b"MESSAGE"].split(b"\n")):
        yield Entry(int(stamp[:18]) / 1e6, int(pid[:10]) if pid.isdigit() else 0, line)
