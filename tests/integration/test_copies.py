from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import socket
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest

from freezeframe.agentd.config import Copy, StoreLimits
from freezeframe.agentd.store import Copying, Store
from freezeframe.judge import file
from tests.support.copying import copying, nothing_waits, until
from tests.support.filled import canned_snapshot
from tests.support.s3_server import CREDENTIALS, S3Server, s3_server

bucket: Any = (
    importlib.import_module("freezeframe.agentd.store.bucket") if importlib.util.find_spec("obstore") else None
)

pytestmark = pytest.mark.needs("s3")

DATA = file.write([canned_snapshot()], "w")


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


async def took_s(work: Awaitable[None]) -> float:
    begin = asyncio.get_running_loop().time()
    await work
    return asyncio.get_running_loop().time() - begin


async def test_every_kept_snapshot_arrives_byte_for_byte(store: Store, server: S3Server) -> None:
    await store.put("a", DATA)
    async with copying(store, bucket.Bucket(Copy(to="s3://bucket/deep/er", endpoint=server.endpoint))) as copier:
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
        async with copying(store, bucket.Bucket(Copy(to="s3://restart", endpoint=server.endpoint))) as copier:
            assert (await until(copier, nothing_waits)).copied == 1
        store.close()
    assert server.names("restart") == ["a.ffz", "b.ffz"]


async def test_a_server_that_is_away_holds_up_no_capture_and_gets_all_when_it_is_back(store: Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    copy = Copy(to="s3://late", endpoint=f"http://127.0.0.1:{port}")
    async with copying(store, bucket.Bucket(copy)) as copier:
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
        async with copying(store, bucket.Bucket(copy), silent_s=0.1) as copier:
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
