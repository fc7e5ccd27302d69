"""The log files that a process holds open, and their last lines.

A file is opened through /proc/PID/fd, so neither mount namespaces nor a deleted name matter; only regular files, so
nothing is taken from a pipe and no fifo blocks. A read on dead storage can hang: workers only.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass

from freezeframe.agentd.host.text import escape

_STANDARD = (1, 2)
_LOG_NAME = re.compile(r"\.(log|out|err)(\.\d+)?( \(deleted\))?$")
_COLOUR = re.compile(rb"\x1b\[[0-9;:]*[A-Za-z]")
LINE_BYTES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLog:
    """One descriptor that may lead to a log."""

    # Path to open: /proc/PID/fd/N.
    path: str
    # What it leads to, escaped.
    name: str
    # Device and inode, to look at each file once.
    identity: tuple[int, int]
    # Why it is not read; empty when it can be.
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The end of a file."""

    # Whole lines, colour codes stripped, oldest first.
    lines: tuple[bytes, ...]
    bytes_read: int
    bytes_skipped: int
    # Lines that were cut to LINE_BYTES.
    lines_cut: int
    # When the file was last written, seconds since the epoch.
    written: float


def open_logs(directory: str) -> list[OpenLog]:
    """Logs of a process ("/proc/4711"): its standard output and error, and files named like logs. Raises OSError."""
    found = []
    for name in sorted(os.listdir(f"{directory}/fd"), key=int):
        path = f"{directory}/fd/{name}"
        try:
            link = os.readlink(path)
            if int(name) not in _STANDARD and not (link.startswith("/") and _LOG_NAME.search(link)):
                continue
            status = os.stat(path)
        except OSError:
            continue  # closed meanwhile
        error = "" if stat.S_ISREG(status.st_mode) else f"{_kind(status.st_mode)}: whoever reads it has the lines"
        if link == "/dev/null":
            error = "thrown away by the process"
        identity = (status.st_dev, status.st_ino)
        found.append(OpenLog(path=path, name=escape(os.fsencode(link), 500), identity=identity, error=error))
    return found


def read_tail(log: OpenLog, max_bytes: int, max_lines: int) -> Tail:
    """Read the end of a log. Raises OSError."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        descriptor = os.open(log.path, flags | os.O_NOATIME)
    except PermissionError:
        # Another user's file without CAP_FOWNER: its access time changes.
        descriptor = os.open(log.path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != log.identity:
            raise OSError(0, "it is another file now")
        begin = max(0, status.st_size - max_bytes)
        pieces = []
        place = begin
        while place < status.st_size:
            piece = os.pread(descriptor, min(1 << 20, status.st_size - place), place)
            if not piece:
                break  # truncated meanwhile
            pieces.append(piece)
            place += len(piece)
    finally:
        os.close(descriptor)
    data = b"".join(pieces)
    skipped = begin
    if begin:
        # The first line is only the end of one.
        first, newline, rest = data.partition(b"\n")
        skipped += len(first) + len(newline)
        data = rest
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    if len(lines) > max_lines:
        skipped += sum(len(line) + 1 for line in lines[:-max_lines])
        lines = lines[-max_lines:]
    cut = sum(1 for line in lines if len(line) > LINE_BYTES)
    return Tail(
        lines=tuple(_COLOUR.sub(b"", line[:LINE_BYTES]) for line in lines),
        bytes_read=sum(len(line) + 1 for line in lines),
        bytes_skipped=skipped,
        lines_cut=cut,
        written=status.st_mtime,
    )


def _kind(mode: int) -> str:
    for test, word in ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a terminal or device")):
        if test(mode):
            return word
    return "no regular file"
