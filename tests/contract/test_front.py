from __future__ import annotations

import asyncio
import contextlib
import grp
import json
import os
import secrets
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from freezeframe.agentd import front, guard, sockets
from freezeframe.agentd.config import CaptureLimits, Config, Groups
from freezeframe.agentd.errors import SocketInUseError, SocketRefusedError
from freezeframe.judge import file
from freezeframe.judge.model import Process, Snapshot
from freezeframe.v1 import service_pb2
from freezeframe.v1.service_pb2_grpc import CaptureServiceStub
from tests.support.agent import CannedEngine, RunningAgent, running_agent
from tests.support.filled import canned_snapshot
from tests.support.waiting import eventually

ROLES = ("view", "capture", "admin")
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """One mebibyte."""
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)], check=True)
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def resident_kib() -> int:
    with open("/proc/self/status", encoding="ascii") as stream:
        return next(int(line.split()[1]) for line in stream if line.startswith("VmRSS"))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def make_large(snapshot_id: str) -> Snapshot:
    noise = os.urandom(10_000_000).hex()
    return Snapshot(meta=canned_snapshot(snapshot_id).meta, processes=(Process(pid=1, title=noise),))


async def snap(agent: RunningAgent, note: str = "") -> bytes:
    call = agent.stub().Capture(service_pb2.CaptureRequest(note=note))
    return b"".join([event.chunk.data async for event in call if event.HasField("chunk")])


async def drain(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def healthy(channel: grpc.aio.Channel) -> float:
    """Seconds that a health check takes."""
    begin = time.monotonic()
    answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert answer.status == SERVING
    return time.monotonic() - begin


async def test_each_role_has_a_socket_for_its_group_alone(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as agent:
        assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o711
        assert {path.name for path in (tmp_path / "run").iterdir()} == {f"{role}.sock" for role in ROLES}
        for role in ROLES:
            found = agent.socket(role).lstat()
            assert stat.S_ISSOCK(found.st_mode)
            assert stat.S_IMODE(found.st_mode) == 0o660
            await healthy(agent.channel(role))
        assert os.umask(0o077) != 0o117
        os.umask(0o022)
    assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.needs("root")
async def test_a_socket_belongs_to_its_configured_group(tmp_path: Path) -> None:
    names = [entry.gr_name for entry in grp.getgrall() if entry.gr_gid][:2]
    config = Config(groups=Groups(view=names[0], capture=str(grp.getgrnam(names[1]).gr_gid)))
    async with running_agent(tmp_path, config=config) as agent:
        groups = [grp.getgrgid(agent.socket(role).lstat().st_gid).gr_name for role in ROLES]
    assert groups == [names[0], names[1], grp.getgrgid(os.getegid()).gr_name]


async def test_a_group_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SocketRefusedError, match="there is no group 'nobody-has-this'"):
        async with running_agent(tmp_path, config=Config(groups=Groups(view="nobody-has-this"))):
            pass
    assert list((tmp_path / "run").iterdir()) == []


_ASK = """
import os, sys, grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
os.setgroups([])
os.setresgid(*[int(sys.argv[2])] * 3)
os.setresuid(60000, 60000, 60000)
try:
    health_pb2_grpc.HealthStub(grpc.insecure_channel("unix:" + sys.argv[1])).Check(
        health_pb2.HealthCheckRequest(), timeout=20)
    print("served")
except grpc.RpcError as error:
    print(error.code().name, "Permission denied" in error.details())
"""


@pytest.mark.needs("root")
async def test_another_user_is_refused_and_one_of_the_group_is_served(tmp_path: Path) -> None:
    config = Config(groups=Groups(view="60001"))
    for folder in (*tmp_path.parents, tmp_path):
        if folder.is_relative_to("/tmp/pytest-of-root"):
            folder.chmod(0o711)

    async def ask(role: str, group: int) -> str:
        # Imports first: the interpreter may be where only root can read.
        command = [sys.executable, "-c", _ASK, str(agent.socket(role)), str(group)]
        child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        out, _ = await child.communicate()
        return out.decode().strip()

    async with running_agent(tmp_path, config=config) as agent:
        assert await ask("view", 60000) == "UNAVAILABLE True"
        assert await ask("view", 60001) == "served"
        assert await ask("capture", 60001) == "UNAVAILABLE True"


async def test_reflection_lists_the_services(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as agent:
        stub = reflection_pb2_grpc.ServerReflectionStub(agent.channel("view"))
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = [answer async for answer in stub.ServerReflectionInfo(iter([request]))]
    assert {service.name for service in answer.list_services_response.service} == {
        "freezeframe.v1.CaptureService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }


async def test_health_answers_while_captures_run_and_all_places_are_taken(tmp_path: Path) -> None:
    async with running_agent(tmp_path, capture=CaptureLimits(queue=200, burst=300)) as agent:
        agent.engine.release.clear()
        stub = agent.stub()
        calls = [asyncio.create_task(snap(agent, note=str(number))) for number in range(64)]
        await eventually(lambda: len(agent.parts.captures._runs) == 64)
        begin = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.ListSnapshots(service_pb2.ListSnapshotsRequest())
        refused_in = time.monotonic() - begin
        assert caught.value.details() == "64 calls are open already"
        channel = agent.channel("admin")
        await healthy(channel)
        times = sorted([await healthy(channel) for _ in range(50)])
        agent.engine.release.set()
        assert [file.read(data).lost for data in await asyncio.gather(*calls)] == [()] * 64
    # 50 ms is the promise; a machine that runs other things gets some room.
    assert times[25] < 0.05, times
    assert times[-1] < 0.5, times
    assert refused_in < 0.5


async def test_health_answers_while_a_large_snapshot_is_packed(tmp_path: Path) -> None:
    def make(snapshot_id: str) -> Snapshot:
        many = tuple(Process(pid=pid, title=f"process {pid}") for pid in range(20_000))
        return Snapshot(meta=canned_snapshot(snapshot_id).meta, processes=many)

    async with running_agent(tmp_path, engine=CannedEngine(make)) as agent:
        channel = agent.channel("view")
        await healthy(channel)
        capture = asyncio.create_task(snap(agent))
        times = []
        while not capture.done():
            times.append(await healthy(channel))
        assert len(file.read(await capture).hosts[0].processes) == 20_000
    assert sorted(times)[len(times) // 2] < 0.1, times


async def test_a_thousand_garbage_connections_change_nothing(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as agent:
        assert file.read(await snap(agent)).lost == ()
        await asyncio.sleep(0)
        open_before, resident_before = descriptors(), resident_kib()
        path = str(agent.socket("view"))

        def throw() -> None:
            for number in range(1000):
                with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
                    connection.settimeout(10)
                    connection.connect(path)
                    if number % 2:
                        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                    connection.sendall(secrets.token_bytes(200))

        await asyncio.to_thread(throw)
        for number in range(200):
            with pytest.raises(grpc.aio.AioRpcError):
                await agent.channel("view").unary_unary("/freezeframe.v1.CaptureService/GetSnapshot")(b"\xff" * number)
            await agent.channels.pop().close()
        assert file.read(await snap(agent)).lost == ()
        await eventually(lambda: descriptors() <= open_before + 8, 30)
        assert resident_kib() - resident_before < 40_000
        assert "Traceback" not in agent.log.getvalue()


async def test_silent_connections_are_closed_and_a_call_goes_through(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as agent:
        silent = [socket.socket(socket.AF_UNIX) for _ in range(200)]
        try:
            for connection in silent:
                connection.setblocking(False)
                connection.connect(str(agent.socket("capture")))
            assert file.read(await snap(agent)).lost == ()

            def closed(connection: socket.socket) -> bool:
                try:
                    while connection.recv(4096):
                        pass
                except BlockingIOError:
                    return False
                except OSError:
                    pass
                return True

            await eventually(lambda: all(closed(connection) for connection in silent), 30)
        finally:
            for connection in silent:
                connection.close()


async def test_a_reader_that_reads_nothing_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = guard.Guard
    monkeypatch.setattr(front, "Guard", lambda *arguments: real(*arguments, write_timeout_s=0.3))
    async with running_agent(tmp_path, engine=CannedEngine(make_large)) as agent:
        slow = agent.stub().Capture(service_pb2.CaptureRequest())
        assert (await slow.read()).HasField("progress")
        runs = [*agent.parts.captures._runs]
        await eventually(lambda: len(agent.engine.specs) == 1 and not agent.parts.captures._runs)
        await eventually(lambda: [run.participants for run in runs] == [set()])
        assert agent.audit_lines() == []
        # Another reader of the same agent gets all of it meanwhile.
        assert file.read(await snap(agent)).lost == ()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await drain(slow)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.details() == "nothing was taken for 0.3 s"
        await eventually(lambda: [line["outcome"] for line in agent.audit_lines()] == ["OK", "RESOURCE_EXHAUSTED"])


@pytest.mark.needs("root")
async def test_on_a_full_disk_the_capture_reaches_the_client(tmp_path: Path, small_disk: Path) -> None:
    async with running_agent(tmp_path, engine=CannedEngine(make_large), store_path=small_disk / "s") as agent:
        call = agent.stub().Capture(service_pb2.CaptureRequest())
        events = [event async for event in call]
        data = b"".join(event.chunk.data for event in events)
        assert file.read(data).lost == ()
        assert events[-1].done.kept is False
        assert events[-1].done.not_kept_because == (
            f"keeping gpu-07-20260102T030405-0001 ({len(data):,} bytes): No space left on device; "
            "free space on the disk of the state directory"
        )
        assert list((small_disk / "s").iterdir()) == []
        agent.engine.make = canned_snapshot
        assert [event async for event in agent.stub().Capture(service_pb2.CaptureRequest())][-1].done.kept


async def test_a_running_agent_is_not_displaced(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as agent:
        before = sockets.identity(str(agent.socket("admin")))
        with pytest.raises(SocketInUseError, match=r"another agent answers on .*view\.sock"):
            async with running_agent(tmp_path):
                pass
        assert sockets.identity(str(agent.socket("admin"))) == before
        await healthy(agent.channel("view"))


async def test_what_a_dead_agent_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o711)
    for role in ROLES:
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / "run" / f"{role}.sock"))
    async with running_agent(tmp_path) as agent:
        await healthy(agent.channel("capture"))


def test_a_listener_that_never_answers_counts_as_dead(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(tmp_path / "x.sock"))
        stuck.listen()
        assert not sockets.answers(str(tmp_path / "x.sock"), 0.2)


def test_paths_that_are_not_ours_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file.sock").write_text("x")
    (tmp_path / "link.sock").symlink_to("/nonexistent/victim")
    for name in ("file.sock", "link.sock"):
        with pytest.raises(SocketRefusedError, match="is there and is no socket"):
            sockets.claim(str(tmp_path / name))
    with pytest.raises(SocketRefusedError, match="too long for a socket"):
        sockets.claim(str(tmp_path / ("x" * 100)))
    assert (tmp_path / "link.sock").is_symlink()


@pytest.mark.needs("root")
def test_a_socket_of_somebody_else_is_refused(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(tmp_path / "x.sock"))
    os.chown(tmp_path / "x.sock", 60000, -1)
    with pytest.raises(SocketRefusedError, match="belongs to uid 60000"):
        sockets.claim(str(tmp_path / "x.sock"))


def test_a_directory_that_others_may_write_in_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    with pytest.raises(SocketRefusedError, match="others may write"):
        sockets.prepare_directory(str(tmp_path / "run"))
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(SocketRefusedError, match="is no directory"):
        sockets.prepare_directory(str(tmp_path / "link"))


def test_a_private_directory_stays_private(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    sockets.prepare_directory(str(tmp_path / "run"))
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700


def test_a_successors_socket_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    path.write_text("mine")
    mine = sockets.identity(str(path))
    (tmp_path / "other").write_text("theirs")
    (tmp_path / "other").rename(path)
    sockets.remove(str(path), mine)
    assert path.read_text() == "theirs"


async def test_stopping_ends_captures_with_a_sentence(tmp_path: Path) -> None:
    async with running_agent(tmp_path) as agent:
        agent.engine.release.clear()
        capture = asyncio.create_task(snap(agent))
        await asyncio.wait_for(agent.engine.begun.wait(), 10)
        agent.stop.set()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await capture
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == "the agent is stopping"


def start_front(directory: Path, *options: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.programs.canned_front", "--runtime-dir", str(directory / "run"),
         "--state-dir", str(directory / "state"), *options],
        cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_front_of_its_own_process_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    child = start_front(tmp_path)
    assert child.stdout is not None
    assert [child.stdout.readline(), child.stdout.readline()] == ["bound\n", "ready\n"]
    with grpc.insecure_channel(f"unix:{tmp_path}/run/capture.sock") as channel:
        events = list(CaptureServiceStub(channel).Capture(service_pb2.CaptureRequest(), timeout=30))
    assert events[-1].done.kept
    child.terminate()
    _, log = child.communicate(timeout=30)
    assert child.returncode == 0
    assert [json.loads(line)["event"] for line in log.splitlines()] == ["serving", "call", "stopping"]
    assert list((tmp_path / "run").iterdir()) == []
    assert len(list((tmp_path / "state" / "snapshots").iterdir())) == 1


def test_calls_have_a_file_of_their_own_where_one_is_configured(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(f'[audit]\nfile = "{tmp_path}/audit.log"')
    child = start_front(tmp_path, "--config", str(tmp_path / "c.toml"))
    assert child.stdout is not None
    assert [child.stdout.readline(), child.stdout.readline()] == ["bound\n", "ready\n"]
    with grpc.insecure_channel(f"unix:{tmp_path}/run/view.sock") as channel:
        CaptureServiceStub(channel).ListSnapshots(service_pb2.ListSnapshotsRequest(), timeout=30)
        with pytest.raises(grpc.RpcError):
            CaptureServiceStub(channel).DeleteSnapshot(service_pb2.DeleteSnapshotRequest(snapshot_id="x"), timeout=30)
    child.terminate()
    _, log = child.communicate(timeout=30)
    assert [json.loads(line)["event"] for line in log.splitlines()] == ["serving", "stopping"]
    lines = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
    assert [(line["rpc"], line["outcome"]) for line in lines] == [
        ("ListSnapshots", "OK"), ("DeleteSnapshot", "PERMISSION_DENIED"),
    ]  # fmt: skip


def test_a_front_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "admin.sock").write_text("x")
    child = start_front(tmp_path)
    _, log = child.communicate(timeout=30)
    assert child.returncode == 1
    (line,) = [json.loads(line) for line in log.splitlines()]
    assert line["detail"] == f"{tmp_path}/run/admin.sock is there and is no socket"


def test_a_wrong_configuration_is_told_in_plain_words(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("runtime_dri = 3")
    child = start_front(tmp_path, "--config", str(tmp_path / "c.toml"))
    _, log = child.communicate(timeout=30)
    assert child.returncode == 1
    assert log == f"{tmp_path}/c.toml: unknown key runtime_dri\ndid you mean runtime_dir?\n"
