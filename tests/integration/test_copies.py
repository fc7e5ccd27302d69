from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import os
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from freezeframe.agentd.config import Copy, StoreLimits
from freezeframe.agentd.store import Copier, Copying, Store
from freezeframe.judge import file
from tests.support.filled import canned_snapshot
from tests.support.s3_server import CREDENTIALS, S3Server, s3_server

bucket: Any = (
    importlib.import_module("freezeframe.agentd.store.bucket") if importlib.util.find_spec("obstore") else None
)

pytestmark = pytest.mark.needs("s3")

DATA = file.write([canned_snapshot()], "w")
PAUSES_S = (0.05, 0.4)


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        running.make("bucket")
        yield running


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(str(tmp_path / "state" / "snapshots"), StoreLimits())
    yield opened
    opened.close()


@contextlib.asynccontextmanager
async def copying(store: Store, copy: Copy, silent_s: float = 60.0) -> AsyncIterator[Copier]:
    logger = structlog.get_logger()
    copier = Copier(store, bucket.Bucket(copy), logger, pauses_s=PAUSES_S, silent_s=silent_s)
    running = asyncio.ensure_future(copier.run())
    try:
        yield copier
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def until(copier: Copier, holds: Callable[[Copying], bool], limit_s: float = 60.0) -> Copying:
    async def poll() -> Copying:
        while not holds(state := await copier.state()):
            await asyncio.sleep(0.02)
        return state

    return await asyncio.wait_for(poll(), limit_s)


def nothing_waits(state: Copying) -> bool:
    return state.waiting == 0


async def took_s(work: Awaitable[None]) -> float:
    begin = asyncio.get_running_loop().time()
    await work
    return asyncio.get_running_loop().time() - begin


async def test_every_kept_snapshot_arrives_byte_for_byte(store: Store, server: S3Server) -> None:
    await store.put("a", DATA)
    async with copying(store, Copy(to="s3://bucket/deep/er", endpoint=server.endpoint)) as copier:
        await until(copier, nothing_waits)
        await store.put("b", DATA + b"b")
        state = await until(copier, nothing_waits)
    assert state == Copying(copied=2, waiting=0, failure=None)
    assert server.names("bucket") == ["deep/er/a.ffz", "deep/er/b.ffz"]
    assert server.read("bucket", "deep/er/a.ffz") == DATA
    assert server.read("bucket", "deep/er/b.ffz") == DATA + b"b"


async def test_what_was_copied_is_not_copied_again_after_a_restart(tmp_path: Path, server: S3Server) -> None:
    server.make("restart")
    for name in ("a", "b"):
        store = Store(str(tmp_path / "s"), StoreLimits())
        await store.put(name, DATA)
        async with copying(store, Copy(to="s3://restart", endpoint=server.endpoint)) as copier:
            assert (await until(copier, nothing_waits)).copied == 1
        store.close()
    assert server.names("restart") == ["a.ffz", "b.ffz"]


async def test_a_server_that_is_away_holds_up_no_capture_and_gets_all_when_it_is_back(store: Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    copy = Copy(to="s3://late", endpoint=f"http://127.0.0.1:{port}")
    async with copying(store, copy) as copier:
        await store.put("a", DATA)
        state = await until(copier, lambda state: state.failure is not None)
        assert state.failure is not None
        assert state.failure.detail.startswith("copying a.ffz to s3://late: Generic S3 error: Error performing PUT")
        assert state.failure.hint.startswith("look at copy.to, copy.endpoint, the way there, and AWS_ACCESS_KEY_ID")
        assert (state.copied, state.waiting) == (0, 1)
        assert await took_s(store.put("b", DATA)) < 5
        with s3_server(port) as server:
            # There is no such bucket yet.
            state = await until(copier, lambda state: state.failure is not None and "bucket" in state.failure.hint)
            assert state.failure is not None
            assert state.failure.hint == "make the bucket, or correct copy.to"
            server.make("late")
            state = await until(copier, nothing_waits)
            assert (state.copied, state.failure) == (2, None)
            assert server.names("late") == ["a.ffz", "b.ffz"]


async def test_a_server_that_says_nothing_is_told_and_asked_once(store: Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        copy = Copy(to="s3://b", endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}")
        async with copying(store, copy, silent_s=0.1) as copier:
            await store.put("a", DATA)
            state = await until(copier, lambda state: state.failure is not None)
            assert state.failure is not None
            assert state.failure.detail == "copying a: no answer within 0.1 s"
            assert await took_s(store.put("b", DATA)) < 5
            silent.setblocking(False)
            connections = []
            with contextlib.suppress(BlockingIOError):
                while True:
                    connections.append(silent.accept()[0])
            assert len(connections) == 1
            for connection in connections:
                connection.close()


async def test_a_directory_gets_copies_for_its_owner_alone(store: Store, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        copy = Copy(to=f"file://{tmp_path}/copies")
        async with copying(store, copy) as copier:
            await store.put("a", DATA)
            state = await until(copier, lambda state: state.failure is not None)
            assert state.failure is not None
            assert state.failure.detail.startswith(f"copying a.ffz to file://{tmp_path}/copies: ")
            assert state.failure.hint == "make the directory, for the agent to write, or mount it"
            (tmp_path / "copies").mkdir()
            await until(copier, nothing_waits)
    finally:
        os.umask(before)
    assert (tmp_path / "copies" / "a.ffz").read_bytes() == DATA
    assert stat.S_IMODE((tmp_path / "copies" / "a.ffz").stat().st_mode) == 0o600


async def test_one_that_cannot_be_copied_holds_up_no_other(store: Store, tmp_path: Path) -> None:
    (tmp_path / "copies" / "a.ffz").mkdir(parents=True)
    async with copying(store, Copy(to=f"file://{tmp_path}/copies")) as copier:
        for name in ("a", "b", "c"):
            await store.put(name, DATA)
        state = await until(copier, lambda state: state.waiting == 1 and state.failure is not None)
        assert state.copied == 2
        (tmp_path / "copies" / "a.ffz").rmdir()
        state = await until(copier, nothing_waits)
    assert (state.copied, state.failure) == (3, None)


async def test_one_that_was_removed_meanwhile_is_let_go(store: Store, tmp_path: Path) -> None:
    async with copying(store, Copy(to=f"file://{tmp_path}/copies")) as copier:
        await store.put("a", DATA)
        await until(copier, lambda state: state.failure is not None)
        await store.delete("a")
        await store.put("b", DATA)
        (tmp_path / "copies").mkdir()
        await until(copier, nothing_waits)
    assert os.listdir(tmp_path / "copies") == ["b.ffz"]


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
