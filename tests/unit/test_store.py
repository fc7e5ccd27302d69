from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from freezeframe.agentd.config import StoreLimits
from freezeframe.agentd.errors import (
    BadRequestError,
    SnapshotDamagedError,
    SnapshotPinnedError,
    StoreFailedError,
    UnknownSnapshotError,
)
from freezeframe.agentd.store import LATEST, Store
from freezeframe.agentd.store.directory import Directory
from freezeframe.judge import file
from tests.support.filled import canned_snapshot, filled_snapshot

DATA = file.write([canned_snapshot()], "w")


def ids(store: Directory) -> list[str]:
    return [kept.snapshot_id for kept in store.kept()]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    directory = Directory(str(tmp_path / "state" / "snapshots"), StoreLimits())
    yield directory
    directory.close()


@pytest.fixture
def path(directory: Directory, tmp_path: Path) -> Path:
    return tmp_path / "state" / "snapshots"


def put(directory: Directory, path: Path, *names: str, data: bytes = DATA) -> None:
    """Keep snapshots whose times differ, oldest first."""
    for index, name in enumerate(names):
        directory.put(name, data)
        os.utime(path / f"{name}.ffz", ns=(0, (index + 1) * 10**9))


def test_the_directory_and_its_files_are_for_the_agent_alone(directory: Directory, path: Path) -> None:
    directory.put("a", DATA)
    assert path.stat().st_mode & 0o7777 == 0o700
    assert (path / "a.ffz").stat().st_mode & 0o7777 == 0o600
    assert (path / "a.ffz").read_bytes() == DATA
    assert [entry.name for entry in path.iterdir()] == ["a.ffz"]


def test_a_directory_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir(mode=0o777)
    (tmp_path / "s").chmod(0o777)
    Directory(str(tmp_path / "s"), StoreLimits()).close()
    assert (tmp_path / "s").stat().st_mode & 0o7777 == 0o700


def test_a_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "s").symlink_to("real")
    with pytest.raises(StoreFailedError, match="opening the store"):
        Directory(str(tmp_path / "s"), StoreLimits())


@pytest.mark.needs("root")
def test_a_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    os.chown(tmp_path / "s", 12345, -1)
    with pytest.raises(StoreFailedError, match="belongs to uid 12345") as caught:
        Directory(str(tmp_path / "s"), StoreLimits())
    assert caught.value.hint == f"chown 0 {tmp_path}/s, or set state_dir"


def test_what_a_killed_writer_left_is_removed(directory: Directory, path: Path) -> None:
    (path / ".a.0011.tmp").write_bytes(b"half")
    Directory(str(path), StoreLimits()).close()
    assert list(path.iterdir()) == []


def test_the_newest_comes_first_with_its_manifest(directory: Directory, path: Path) -> None:
    put(directory, path, "a", "b", "c")
    kept = directory.kept()
    assert [each.snapshot_id for each in kept] == ["c", "b", "a"]
    assert [each.snapshot_id for each in directory.kept(2)] == ["c", "b"]
    assert kept[0].manifest == file.read_manifest(DATA)
    assert kept[0].size_bytes == len(DATA)
    assert kept[0].damage == ""


def test_damaged_files_are_listed_as_damaged(directory: Directory, path: Path) -> None:
    (path / "cut.ffz").write_bytes(DATA[:-5])
    (path / "foreign.ffz").write_bytes(b"hello")
    (path / "headless.ffz").write_bytes(DATA[:60])
    (path / "link.ffz").symlink_to("/etc/passwd")
    os.mkfifo(path / "fifo.ffz")
    (path / "notes.txt").write_bytes(b"")
    (path / "-rf.ffz").write_bytes(b"")
    damage = {kept.snapshot_id: (kept.damage, kept.manifest is None) for kept in directory.kept()}
    end = file.manifest_end(DATA)
    assert damage == {
        "cut": (f"it has {len(DATA) - 5:,} of {len(DATA):,} bytes", False),
        "foreign": ("the file does not begin as a snapshot (.ffz) does", True),
        "headless": (
            f"the manifest is cut: {60 - file.HEAD_BYTES} of its {end - file.HEAD_BYTES:,} bytes are there",
            True,
        ),
        "link": ("link is no regular file", True),
        "fifo": ("fifo is no regular file", True),
    }


def test_a_long_manifest_is_read_whole(directory: Directory) -> None:
    data = file.write([canned_snapshot(note="x" * 200_000)], "w")
    directory.put("a", data)
    (kept,) = directory.kept()
    assert kept.manifest == file.read_manifest(data)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "a/b", "/etc/passwd", "a\0b", "a\n", ".hidden", "-x", "é", "x" * 201]
)
def test_names_that_are_no_ids_are_refused(directory: Directory, name: str) -> None:
    for call in (
        lambda: directory.put(name, DATA),
        lambda: directory.reader(name),
        lambda: directory.delete(name),
        lambda: directory.pin(name, True),
    ):
        with pytest.raises(BadRequestError, match="is no snapshot id"):
            call()


def test_unknown_ids_are_named(directory: Directory) -> None:
    for call in (
        lambda: directory.reader("a"),
        lambda: directory.delete("a"),
        lambda: directory.pin("a", True),
    ):
        with pytest.raises(UnknownSnapshotError, match="no snapshot a is kept here"):
            call()
    with pytest.raises(UnknownSnapshotError, match="no snapshot is kept here"):
        directory.reader(None)


def test_links_and_fifos_are_not_opened(directory: Directory, path: Path) -> None:
    (path / "link.ffz").symlink_to("/etc/passwd")
    os.mkfifo(path / "fifo.ffz")
    for name in ("link", "fifo"):
        with pytest.raises(SnapshotDamagedError, match="is no regular file"):
            directory.reader(name)


def test_pinned_ones_are_not_deleted(directory: Directory, path: Path) -> None:
    put(directory, path, "a")
    directory.pin("a", True)
    directory.pin("a", True)
    assert directory.kept()[0].pinned
    with pytest.raises(SnapshotPinnedError, match="a is pinned"):
        directory.delete("a")
    directory.pin("a", False)
    directory.pin("a", False)
    directory.delete("a")
    assert list(path.iterdir()) == []


def test_the_oldest_unpinned_go_first(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path / "s"), StoreLimits(max_snapshots=3))
    put(directory, tmp_path / "s", "a", "b", "c")
    directory.pin("a", True)
    directory.put("d", DATA)
    assert ids(directory) == ["d", "c", "a"]
    directory.close()


def test_the_sum_of_sizes_is_kept(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path / "s"), StoreLimits(max_bytes=2 * len(DATA) + 1))
    put(directory, tmp_path / "s", "a", "b")
    directory.put("c", DATA)
    assert ids(directory) == ["c", "b"]
    directory.close()


def test_pinned_ones_that_fill_the_store_keep_the_next_out(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path / "s"), StoreLimits(max_snapshots=1))
    directory.put("a", DATA)
    directory.pin("a", True)
    with pytest.raises(StoreFailedError, match="1 pinned snapshots leave no room"):
        directory.put("b", DATA)
    assert ids(directory) == ["a"]
    directory.close()


@pytest.mark.needs("root")
def test_a_full_disk_leaves_nothing_behind_and_the_store_goes_on(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], check=True)
    try:
        directory = Directory(str(mount / "s"), StoreLimits())
        directory.put("a", os.urandom(600_000))
        with pytest.raises(StoreFailedError, match=r"keeping b \(600,000 bytes\): No space left on device") as caught:
            directory.put("b", os.urandom(600_000))
        assert caught.value.hint == "free space on the disk of the state directory"
        assert [entry.name for entry in (mount / "s").iterdir()] == ["a.ffz"]
        directory.delete("a")
        directory.put("b", os.urandom(600_000))
        assert ids(directory) == ["b"]
        directory.close()
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_one_that_is_larger_than_the_store_is_refused_by_its_own_size(tmp_path: Path) -> None:
    directory = Directory(str(tmp_path / "s"), StoreLimits(max_bytes=len(DATA)))
    put(directory, tmp_path / "s", "a")
    with pytest.raises(StoreFailedError, match=rf"the store takes {len(DATA):,}") as caught:
        directory.put("b", DATA + b"x")
    assert caught.value.hint == "raise store.max_bytes"
    assert ids(directory) == ["a"]
    directory.close()


def test_a_check_finds_bytes_that_were_changed_and_the_list_shows_them(directory: Directory, path: Path) -> None:
    put(directory, path, "whole", "changed", "cut")
    directory.pin("whole", True)
    changed = bytearray(DATA)
    changed[-1] ^= 1
    (path / "changed.ffz").write_bytes(changed)
    os.truncate(path / "cut.ffz", len(DATA) - 1)
    assert {each.snapshot_id: each.damage for each in directory.kept()}["changed"] == ""
    found = directory.check(60.0)
    damage = {
        "changed": f"bytes were changed in {file.read_manifest(DATA).hosts[0].sections[-1].name}",
        "cut": f"it has {len(DATA) - 1:,} of {len(DATA):,} bytes",
    }
    assert dict(found.damaged) == damage
    assert (found.snapshots, found.pinned, found.unchecked) == (3, 1, 0)
    assert found.size_bytes == 3 * len(DATA) - 1
    assert found.free_bytes > 0
    assert {each.snapshot_id: each.damage for each in directory.kept()} == {"whole": "", **damage}
    # Written anew: not what was checked.
    (path / "changed.ffz").write_bytes(DATA)
    assert dict(directory.check(60.0).damaged) == {"cut": damage["cut"]}


def test_a_check_without_time_says_what_it_has_not_read(directory: Directory, path: Path) -> None:
    put(directory, path, "a", "b")
    assert directory.check(0.0).unchecked == 2
    assert directory.check(60.0).unchecked == 0
    assert directory.check(0.0).unchecked == 0


async def test_a_file_is_streamed_in_chunks_of_a_mebibyte(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "s"), StoreLimits())
    data = os.urandom(2_500_000)
    await store.put("a", data)
    for wanted in ("a", LATEST):
        chunks = [chunk async for chunk in store.read(wanted)]
        assert [len(chunk) for _, chunk in chunks] == [1_048_576, 1_048_576, 402_848]
        assert {found for found, _ in chunks} == {"a"}
        assert b"".join(chunk for _, chunk in chunks) == data
    with pytest.raises(BadRequestError):
        [chunk async for chunk in store.read("")]
    store.close()


async def test_a_file_that_is_deleted_while_it_is_read_stays_whole(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "s"), StoreLimits())
    data = os.urandom(2_500_000)
    await store.put("a", data)
    received = b""
    async for _, chunk in store.read("a"):
        received += chunk
        if await store.kept():
            await store.delete("a")
    assert received == data
    store.close()


async def test_a_disk_that_hangs_is_an_error_in_time(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "s"), StoreLimits(), timeout_s=0.2)
    release = threading.Event()
    store._thread.submit(release.wait)
    with pytest.raises(StoreFailedError, match=r"the disk of .* does not answer within 0\.2 s"):
        await store.put("a", DATA)
    with pytest.raises(StoreFailedError, match="does not answer"):
        await store.kept()
    release.set()
    assert await store.kept() == []
    store.close()


async def test_calls_at_once_do_not_mix(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "s"), StoreLimits(max_snapshots=5))
    await asyncio.gather(*(store.put(f"s{number}", DATA) for number in range(20)))
    assert len(await store.kept()) == 5
    store.close()


WRITER = """
import sys
from freezeframe.agentd.config import StoreLimits
from freezeframe.agentd.store.directory import Directory
directory = Directory(sys.argv[1], StoreLimits())
data = open(sys.argv[2], "rb").read()
for number in range(1_000_000):
    directory.put(f"s{number}", data)
    print(number, flush=True)
"""


def test_a_writer_that_is_killed_leaves_whole_files_only(tmp_path: Path) -> None:
    whole = file.write([filled_snapshot()] * 40, "w")
    (tmp_path / "whole").write_bytes(whole)
    path = tmp_path / "s"
    for kept in range(6):
        command = [sys.executable, "-c", WRITER, str(path), str(tmp_path / "whole")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            # It is then somewhere in the next one.
            for _ in range(kept + 1):
                assert writer.stdout.readline()
            writer.kill()
        directory = Directory(str(path), StoreLimits())
        assert [name for name in os.listdir(path) if not name.endswith(".ffz")] == []
        condition = directory.check(60)
        assert (condition.damaged, condition.unchecked) == ((), 0)
        assert condition.snapshots >= kept + 1
        directory.close()
