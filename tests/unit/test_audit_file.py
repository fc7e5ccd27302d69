"""The audit's own file, on a real file system: rotations from within and from without, and a disk that refuses."""

from __future__ import annotations

import io
import json
import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from freezeframe.agentd import audit_file
from freezeframe.agentd.audit_file import AuditFile
from freezeframe.agentd.config import AuditLog
from freezeframe.agentd.errors import ConfigError
from freezeframe.agentd.logs import make_logger

KIB = 1024


class Audited:
    """A file of its own in `folder`, and what goes to the log instead."""

    def __init__(self, folder: Path, *, max_bytes: int = 64 * KIB, keep: int = 1000) -> None:
        self.path = folder / "audit.log"
        self.instead = io.StringIO()
        self.log = io.StringIO()
        settings = AuditLog(file=str(self.path), max_bytes=max_bytes, keep=keep)
        self.file = AuditFile(settings, self.instead, make_logger(self.log))

    def write(self, number: int, bytes_: int = 100) -> None:
        self.file.write(f"{number:08}".ljust(bytes_ - 1, ".") + "\n")

    def rotated(self) -> list[Path]:
        """The newest first."""
        return sorted(self.path.parent.glob("audit.log.*"), key=lambda path: int(path.suffix[1:]))

    def problems(self) -> list[str]:
        return [json.loads(line)["error"] for line in self.log.getvalue().splitlines()]


def numbers(*files: Path) -> list[int]:
    """Of all lines, each of which must be whole."""
    lines = [line for path in files for line in path.read_text().split("\n")[:-1]]
    assert {len(line) for line in lines} <= {99}
    assert not any(path.read_bytes()[-1:] not in {b"\n", b""} for path in files)
    return [int(line[:8]) for line in lines]


def test_it_is_rotated_before_it_grows_too_large_and_no_line_is_lost(tmp_path: Path) -> None:
    audited = Audited(tmp_path)
    for number in range(2000):
        audited.write(number)
    files = [*reversed(audited.rotated()), audited.path]
    # 655 lines are less than 64 KiB, 656 are more.
    assert [len(path.read_bytes()) for path in files] == [65_500, 65_500, 65_500, 3_500]
    assert numbers(*files) == [*range(2000)]
    assert (audited.instead.getvalue(), audited.problems()) == ("", [])


def test_so_many_are_kept(tmp_path: Path) -> None:
    audited = Audited(tmp_path, keep=2)
    for number in range(655 * 5):
        audited.write(number)
    assert [path.name for path in audited.rotated()] == ["audit.log.1", "audit.log.2"]
    assert numbers(*reversed(audited.rotated()), audited.path) == [*range(655 * 2, 655 * 5)]


def test_what_is_there_already_is_gone_on_with(tmp_path: Path) -> None:
    for number in range(3):
        Audited(tmp_path).write(number)
    assert numbers(tmp_path / "audit.log") == [0, 1, 2]
    assert stat.S_IMODE((tmp_path / "audit.log").stat().st_mode) == 0o640


@pytest.mark.needs("root")
def test_mode_and_owner_are_kept_by_a_rotation_and_by_one_from_without(tmp_path: Path) -> None:
    audited = Audited(tmp_path)
    audited.path.chmod(0o604)
    os.chown(audited.path, 60001, 60002)
    for number in range(656):
        audited.write(number)
    audited.path.rename(tmp_path / "elsewhere")
    audited.write(656)
    for path in (tmp_path / "audit.log.1", tmp_path / "elsewhere", audited.path):
        found = path.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o604, 60001, 60002)
    assert numbers(tmp_path / "audit.log.1", tmp_path / "elsewhere", audited.path) == [*range(657)]


def test_one_that_makes_a_new_file_itself_is_followed(tmp_path: Path) -> None:
    audited = Audited(tmp_path)
    audited.write(0)
    audited.path.rename(tmp_path / "old")
    audited.path.touch(mode=0o600)
    inode = audited.path.stat().st_ino
    audited.write(1)
    assert (numbers(tmp_path / "old"), numbers(audited.path)) == ([0], [1])
    assert (audited.path.stat().st_ino, stat.S_IMODE(audited.path.stat().st_mode)) == (inode, 0o600)
    assert len(os.listdir("/proc/self/fd")) < 100


def test_no_line_is_lost_while_somebody_else_rotates_at_any_moment(tmp_path: Path) -> None:
    audited = Audited(tmp_path, max_bytes=100 * 100)
    ended = threading.Event()
    taken: list[Path] = []

    def rotate() -> None:
        while not ended.is_set():
            there = tmp_path / f"taken-{len(taken)}"
            try:
                audited.path.rename(there)
            except FileNotFoundError:
                continue
            taken.append(there)
            if len(taken) % 2:
                audited.path.touch()

    other = threading.Thread(target=rotate)
    other.start()
    for number in range(5000):
        audited.write(number)
    ended.set()
    other.join(30)
    # It may have taken the file after the last line.
    audited.write(5000)
    assert len(taken) > 10
    assert sorted(numbers(*taken, *audited.rotated(), audited.path)) == [*range(5001)]
    assert audited.instead.getvalue() == ""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tenth of a mebibyte."""
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(mount)], check=True)
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.needs("root")
def test_what_a_full_disk_refuses_goes_to_the_log_which_says_so_once(small_disk: Path) -> None:
    audited = Audited(small_disk, max_bytes=1024 * KIB)
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 90 * KIB)
    for number in range(100):
        audited.write(number)
    filler.unlink()
    audited.write(100)
    instead = [int(line[:8]) for line in audited.instead.getvalue().splitlines()]
    assert len(instead) > 10
    # Whole lines in both, and each in one of them.
    assert sorted([*numbers(audited.path), *instead]) == [*range(101)]
    assert numbers(audited.path)[-1] == 100
    assert audited.problems() == [
        f"{audited.path}: writing: No space left on device; calls are written here until it can be"
    ]
    os.close(audited.file._descriptor)


def test_a_directory_that_lets_nothing_be_renamed_costs_no_line(tmp_path: Path) -> None:
    audited = Audited(tmp_path, keep=1)
    (tmp_path / "audit.log.1").mkdir()
    for number in range(1000):
        audited.write(number)
    assert numbers(audited.path) == [*range(1000)]
    assert audited.problems() == [f"{audited.path}: rotating: Is a directory; it grows until it can be"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.symlink_to("/etc/passwd"), "it is there and is no file"),
        (os.mkfifo, "it is there and is no file"),
        (os.mkdir, "it is there and is no file"),
        (lambda path: path.parent.rmdir(), "its directory is not there"),
    ],
)
def test_what_can_be_no_audit_file_is_refused_before_anything_starts(tmp_path: Path, make: object, said: str) -> None:
    path = tmp_path / "d" / "audit.log"
    path.parent.mkdir()
    make(path)  # type: ignore[operator]
    with pytest.raises(ConfigError) as caught:
        audit_file.check(AuditLog(file=str(path)))
    assert caught.value.detail == f"looking at audit.file, {path}: {said}"
    with pytest.raises(ConfigError, match=f"opening the audit file {path}: "):
        AuditFile(AuditLog(file=str(path)), io.StringIO(), make_logger(io.StringIO()))
