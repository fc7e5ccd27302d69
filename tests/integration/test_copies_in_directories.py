"""Copies in a directory, and the marks of what was copied."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from freezeframe.agentd.composition import _copier
from freezeframe.agentd.config import Copy, StoreLimits
from freezeframe.agentd.store import Copier, Folder, Store
from freezeframe.judge import file
from tests.support.copying import copying, nothing_waits, until
from tests.support.filled import canned_snapshot

DATA = file.write([canned_snapshot()], "w")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(str(tmp_path / "state" / "snapshots"), StoreLimits())
    yield opened
    opened.close()


async def test_a_directory_gets_copies_for_its_owner_alone(store: Store, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        async with copying(store, Folder(f"{tmp_path}/copies")) as copier:
            await store.put("a", DATA)
            state = await until(copier, lambda state: state.failure is not None)
            assert state.failure is not None
            assert state.failure.detail == f"copying a.ffz to {tmp_path}/copies: No such file or directory"
            assert state.failure.hint == "make the directory, for the agent to write, or mount it"
            (tmp_path / "copies").mkdir()
            # Of an agent that was killed while it wrote.
            (tmp_path / "copies" / ".a.ffz.tmp").write_bytes(b"x")
            await until(copier, nothing_waits)
    finally:
        os.umask(before)
    assert (tmp_path / "copies" / "a.ffz").read_bytes() == DATA
    assert os.listdir(tmp_path / "copies") == ["a.ffz"]
    assert stat.S_IMODE((tmp_path / "copies" / "a.ffz").stat().st_mode) == 0o600


async def test_one_that_cannot_be_copied_holds_up_no_other(store: Store, tmp_path: Path) -> None:
    (tmp_path / "copies" / "a.ffz").mkdir(parents=True)
    async with copying(store, Folder(f"{tmp_path}/copies")) as copier:
        for name in ("a", "b", "c"):
            await store.put(name, DATA)
        state = await until(copier, lambda state: state.waiting == 1 and state.failure is not None)
        assert state.copied == 2
        (tmp_path / "copies" / "a.ffz").rmdir()
        state = await until(copier, nothing_waits)
    assert (state.copied, state.failure) == (3, None)


async def test_one_that_was_removed_meanwhile_is_let_go(store: Store, tmp_path: Path) -> None:
    async with copying(store, Folder(f"{tmp_path}/copies")) as copier:
        await store.put("a", DATA)
        await until(copier, lambda state: state.failure is not None)
        await store.delete("a")
        await store.put("b", DATA)
        # The attempt that may have read it before is over.
        await until(copier, lambda state: state.failure is not None and "copying b" in state.failure.detail)
        (tmp_path / "copies").mkdir()
        await until(copier, nothing_waits)
    assert os.listdir(tmp_path / "copies") == ["b.ffz"]


@pytest.mark.parametrize("to", ["file:///copies", pytest.param("s3://bucket", marks=pytest.mark.needs("s3"))])
def test_the_agent_keeps_its_umask(store: Store, to: str) -> None:
    before = os.umask(0o027)
    try:
        assert isinstance(_copier(store, Copy(to=to), structlog.get_logger()), Copier)
    finally:
        assert os.umask(before) == 0o027


async def test_marks_go_with_their_snapshots(tmp_path: Path) -> None:
    path = tmp_path / "s"
    store = Store(str(path), StoreLimits(max_snapshots=2))
    for name in ("a", "b"):
        await store.put(name, DATA)
        await store.copied(name)
    assert await store.uncopied() == []
    # Of one that is not there: no mark.
    await store.copied("gone")
    assert sorted(os.listdir(path)) == ["a.copied", "a.ffz", "b.copied", "b.ffz"]
    os.utime(path / "a.ffz", ns=(0, 1))
    await store.put("c", DATA)
    await store.delete("b")
    assert (sorted(os.listdir(path)), await store.uncopied()) == (["c.ffz"], ["c"])
    await store.copied("c")
    store.close()
    (path / "c.ffz").unlink()
    store = Store(str(path), StoreLimits())
    assert (await store.kept(), os.listdir(path)) == ([], [])
    store.close()
