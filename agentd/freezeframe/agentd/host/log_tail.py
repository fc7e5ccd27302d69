"""Log files: those that a process holds open, the rotated ones before them, and their last lines.

A file that a process holds is opened through /proc/PID/fd, so neither mount namespaces nor a deleted name matter; only
regular files, so nothing is taken from a pipe and no fifo blocks. A read on dead storage can hang: workers only.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass

from freezeframe.agentd.host.text import escape

_STANDARD = (1, 2)
# Of a daily log too: "smg.2026-11-30".
_LOG_NAME = re.compile(r"(\.(log|out|err)([.-][\d-]{1,20})?|\.\d{4}-\d\d-\d\d)( \(deleted\))?$")
# "x.log.1", "x.log-20261130", "x.log.20261130-013900", "x.2026-11-30"; compressed ones are not read.
_ROTATED = re.compile(
    r"(?P<stem>.+?)(?:\.(?P<number>\d{1,3})|[.-](?P<date>\d{4}-?[01]\d-?[0-3]\d(?:[-_.T]?\d\d-?\d\d-?\d\d|-\d{1,10})?))"
)
# A file that was rotated away is not written any more once the next one has its first line.
_ROTATION_S = 2.0
_COLOUR = re.compile(rb"\x1b\[[0-9;:]*[A-Za-z]")
LINE_BYTES = 8192
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLog:
    """One descriptor or file that may lead to a log."""

    # Path to open: /proc/PID/fd/N, or the file's own.
    path: str
    # What it leads to, escaped.
    name: str
    # Device and inode, to look at each file once.
    identity: tuple[int, int]
    # Why it is not read; empty when it can be.
    error: str = ""
    # Standard output or error that leads to whoever may keep the lines: over a "stream" or a "terminal"; else empty.
    collected: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """The end of a file."""

    # Whole lines, colour codes stripped, oldest first.
    lines: tuple[bytes, ...]
    bytes_read: int
    # Text before them that was not read.
    bytes_skipped: int
    # Lines that were too long and were cut.
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
        thrown_away = link == "/dev/null"
        way = "terminal" if stat.S_ISCHR(status.st_mode) else "stream"
        found.append(
            OpenLog(
                path=path,
                name=escape(os.fsencode(link), 500),
                identity=(status.st_dev, status.st_ino),
                error="thrown away by the process" if thrown_away else error,
                collected=way if error and not thrown_away and int(name) in _STANDARD else "",
            )
        )
    return found


def log_file(path: str) -> OpenLog | None:
    """Look at a log by its path; None when there is none. Links are followed: container runtimes make some."""
    with contextlib.suppress(OSError):
        status = os.stat(path)
        if stat.S_ISREG(status.st_mode):
            name = escape(os.fsencode(path), 500)
            return OpenLog(path=path, name=name, identity=(status.st_dev, status.st_ino))
    return None


def rotated_before(log: OpenLog, folder: str, own: str, before: float) -> list[OpenLog]:
    """Files of which `log` is the continuation, the newest first: by name, and not written after `before`.

    `folder` is the log's directory as it can be opened, `own` its name there; where another file has that name, there
    are none.
    """
    found = []
    with contextlib.suppress(OSError):
        held = os.stat(f"{folder}/{own}", follow_symlinks=False)
        if (held.st_dev, held.st_ino) != log.identity:
            return []
        for name in os.listdir(folder):
            place = _place_before(own, name)
            if place is None:
                continue
            with contextlib.suppress(OSError):
                status = os.stat(f"{folder}/{name}", follow_symlinks=False)
                # Of the same owner, so that a link planted in a log directory shows nobody else's file.
                same = (status.st_dev, status.st_uid) == (held.st_dev, held.st_uid)
                if same and stat.S_ISREG(status.st_mode) and status.st_mtime <= before + _ROTATION_S:
                    shown = f"{os.path.dirname(log.name)}/{escape(os.fsencode(name), 255)}"
                    identity = (status.st_dev, status.st_ino)
                    found.append((place, OpenLog(path=f"{folder}/{name}", name=shown, identity=identity)))
    return [each for _, each in sorted(found, key=lambda one: one[0])]


def _place_before(own: str, name: str) -> float | None:
    """Sort key of a rotated file, the newest least; None when it does not come before `own`."""
    mine, other = _ROTATED.fullmatch(own), _ROTATED.fullmatch(name)
    if other is None or other["stem"] != (mine["stem"] if mine else own):
        return None
    place = _place(other)
    if mine is None:
        return place
    same_kind = (mine["date"] is None) == (other["date"] is None)
    return place if same_kind and place > _place(mine) else None


def _place(rotated: re.Match[str]) -> float:
    if rotated["number"] is not None:
        return float(rotated["number"])
    return -float(re.sub(r"\D", "", rotated["date"])[:20].ljust(20, "0"))


def read_tail(log: OpenLog, max_bytes: int, max_lines: int, line_bytes: int = LINE_BYTES) -> Tail:
    """Read the end of a log; lines are cut to `line_bytes`. Raises OSError."""
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
        begin, skipped = _begin(descriptor, status.st_size, max_bytes)
        pieces = []
        place = begin
        while place < status.st_size:
            piece = os.pread(descriptor, min(_PIECE_BYTES, status.st_size - place), place)
            if not piece:
                break  # truncated meanwhile
            pieces.append(piece)
            place += len(piece)
    finally:
        os.close(descriptor)
    data = b"".join(pieces)
    if skipped:
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
    if lines and lines[0].startswith(b"\0"):
        # The rest of a hole: a file that was truncated under a writer that does not append.
        lines[0] = lines[0].lstrip(b"\0")
    cut = sum(1 for line in lines if len(line) > line_bytes)
    return Tail(
        lines=tuple(_COLOUR.sub(b"", line[:line_bytes]) for line in lines),
        bytes_read=sum(len(line) + 1 for line in lines),
        bytes_skipped=skipped,
        lines_cut=cut,
        written=status.st_mtime,
    )


def _begin(descriptor: int, size: int, max_bytes: int) -> tuple[int, int]:
    """Where to begin reading, and how many bytes of text are before that: a hole is none."""
    begin = max(0, size - max_bytes)
    if not begin:
        return 0, 0
    try:
        first = os.lseek(descriptor, 0, os.SEEK_DATA)
        begin = max(begin, os.lseek(descriptor, begin, os.SEEK_DATA))
    except OSError:
        return begin, begin  # nothing but a hole, or a file system that knows none
    return begin, max(0, begin - first)


def plain(line: bytes) -> bytes:
    """Strip colour codes."""
    return _COLOUR.sub(b"", line)


def _kind(mode: int) -> str:
    for test, word in ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a terminal or device")):
        if test(mode):
            return word
    return "no regular file"
