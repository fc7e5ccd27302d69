"""asyncio tasks read from outside, against what each target tells of itself, on every Python at hand."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from freezeframe.agentd.collectors.snapshot_asyncio_tasks import SNAPSHOT_ASYNCIO_TASKS
from freezeframe.agentd.host import Host, procfs
from freezeframe.agentd.host.descriptors import sockets_of
from freezeframe.judge.model import AsyncioTask, Process
from tests.support.children import PROGRAMS, child, python
from tests.support.pythons import Python, each_python
from tests.support.report import run, target, until
from tests.support.reports import KeptReport

pytestmark = [pytest.mark.needs("root"), pytest.mark.timeout(300)]

Truth = dict[str, list[list[object]]]


@contextlib.contextmanager
def known_tasks(
    which: Python, folder: Path, *arguments: str, count: int = 60, churn: int = 0, under: tuple[str, ...] = ()
) -> Iterator[tuple[subprocess.Popen[bytes], Truth]]:
    truth = folder / "truth.json"
    program = str(PROGRAMS / "asyncio_tasks.py")
    with child(*under, which.path, program, str(count), str(churn), str(truth), *arguments) as process:
        yield process, json.loads(truth.read_text())


def look(pid: int, version: str, *, window_ms: float = 0.0) -> KeptReport:
    targets = [target(pid, role=Process.Role.ENGINE_HTTP, python=version)]
    # A machine that has much else to do needs long for what is short.
    return run(SNAPSHOT_ASYNCIO_TASKS, targets, window_ms=window_ms, deadline_ms=120_000.0)


def tasks(kept: KeptReport) -> dict[str, AsyncioTask]:
    assert kept.misses == {}
    return {task.name: task for task in kept.snapshot().asyncio_tasks}


def chain(task: AsyncioTask) -> list[list[object]]:
    # From 3.11 on the code object has the qualified name.
    return [[frame.function.rpartition(".")[2], frame.line] for frame in task.frames]


def chain_names(task: AsyncioTask) -> list[str]:
    return [frame.function for frame in task.frames]


def differing(found: dict[str, AsyncioTask], truth: Truth) -> dict[str, object]:
    return {
        name: (expected, found.get(name))
        for name, expected in truth.items()
        if name not in found or found[name].doubt or chain(found[name]) != expected
    }


@each_python()
@pytest.mark.parametrize("churn", [0, 4000], ids=["still", "churning"])
def test_every_task_is_as_the_target_tells(python: Python, churn: int, tmp_path: Path) -> None:
    with known_tasks(python, tmp_path, count=3000, churn=churn) as (process, truth):
        assert len(truth) > 3000
        kept = look(process.pid, python.minor)
        found = tasks(kept)
        assert differing(found, truth) == {}
        assert kept.finished == [process.pid]
        # What is there beyond it are the tasks of the churn; each is either doubted or one that can be.
        for name in set(found) - set(truth) - {"main", "churn"}:
            task = found[name]
            if not task.doubt:
                assert chain_names(task) in ([], ["short"], ["short", "sleep"], ["short", "sleep", "__sleep0"])


@each_python()
def test_state_and_what_is_awaited(python: Python, tmp_path: Path) -> None:
    with known_tasks(python, tmp_path, count=8) as (process, _):
        found = tasks(look(process.pid, python.minor))
        # One that has ended is there as long as the program keeps it; 3.14 does not list it any more.
        ended = [found.pop(name).state for name in ("main", "ended") if name in found]
        assert set(ended) <= {"finished"}
        assert {task.state for task in found.values()} == {"waiting"}
        assert (found["request-0"].awaits, found["request-0"].awaits_state) == ("Future", "pending")
        assert (found["awaiter"].awaits, found["awaiter"].awaits_address) == ("Task", found["awaited"].address)
        assert found["gatherer"].awaits == "_GatheringFuture"
        assert all(task.loop == found["awaiter"].loop != "" for task in found.values())


@each_python()
def test_which_task_waits_for_which(python: Python, tmp_path: Path) -> None:
    with known_tasks(python, tmp_path, count=8) as (process, truth):
        found = tasks(look(process.pid, python.minor))
        name_of = {task.address: name for name, task in found.items()}
        edges = {
            name: (each.kind, sorted(name_of[edge.address] for edge in task.waits_for))
            for name, task in found.items()
            for each in task.waits_for[:1]
            if not name.startswith("request-")
        }
        expected = {
            "awaiter": ("await", ["awaited"]),
            "gatherer": ("gather", ["gathered-0", "gathered-1"]),
            "waiter": ("wait", ["waited-0", "waited-1"]),
            "shielder": ("shield", ["shielded"]),
        }
        if "grouper" in truth:
            expected["grouper"] = ("TaskGroup", ["grouped-0", "grouped-1"])
        assert edges == expected
        for parent, (_, children) in expected.items():
            assert {found[child].awaited_by for child in children} == {found[parent].address}
        # Until 3.11 wait_for runs what it waits for in a task of its own.
        waits = [edge.kind for task in found.values() if task.name == "request-5" for edge in task.waits_for]
        assert waits == (["wait_for"] if python.minor in {"3.10", "3.11"} else [])


@each_python()
def test_a_task_at_work_has_the_stack_of_its_thread(python: Python) -> None:
    code = """
import asyncio, sys, time
def blocks():
    print("ready", flush=True)
    time.sleep(600)
async def inner():
    await asyncio.sleep(0)
    blocks()
async def outer():
    await inner()
async def main():
    await asyncio.gather(outer(), asyncio.sleep(600))
asyncio.run(main())
"""
    with child(python.path, "-c", code) as process:

        def at_work() -> AsyncioTask | None:
            running = [each for each in tasks(look(process.pid, python.minor)).values() if each.state == "running"]
            # "ready" comes before the sleep.
            return running[0] if len(running) == 1 and not running[0].doubt else None

        until(lambda: at_work() is not None)
        task = at_work()
        assert task is not None
        assert chain(task) == [["outer", 10], ["inner", 8], ["blocks", 5]]
        assert task.tid == process.pid


@each_python()
def test_two_looks(python: Python, tmp_path: Path) -> None:
    with known_tasks(python, tmp_path, count=8, churn=200) as (process, truth):
        kept = look(process.pid, python.minor, window_ms=300.0)
        found = tasks(kept)
        assert differing(found, truth) == {}
        assert {found[name].same_at_second_look for name in truth} == {True}
        assert all(found[name].frames_after == () for name in truth)
        assert kept.parts == 2


@each_python()
def test_several_loops_in_several_threads(python: Python, tmp_path: Path) -> None:
    with known_tasks(python, tmp_path, "threads", count=8) as (process, truth):
        found = tasks(look(process.pid, python.minor))
        assert differing(found, truth) == {}
        assert len({task.loop for task in found.values()}) == 3
        directory = f"/proc/{process.pid}/task"
        comm = {name: found[name].tid for name in ("awaiter", "loop-0-awaiter", "loop-1-awaiter")}
        assert comm["awaiter"] == process.pid
        assert len(set(comm.values())) == 3
        assert set(map(str, comm.values())) <= set(os.listdir(directory))
        assert found["loop-0-awaiter"].loop == found["loop-0-awaited"].loop != found["loop-1-awaiter"].loop


@each_python()
def test_a_stopped_target_is_looked_at_and_stays_as_it_is(python: Python, tmp_path: Path) -> None:
    with known_tasks(python, tmp_path, count=8) as (process, truth):
        process.send_signal(signal.SIGSTOP)
        directory = Host().proc(process.pid)
        until(lambda: procfs.stat(directory).state == "T")
        assert differing(tasks(look(process.pid, python.minor)), truth) == {}
        assert (procfs.stat(directory).state, procfs.status(directory).tracer_pid) == ("T", 0)


@each_python()
def test_a_target_in_namespaces_of_its_own(python: Python, tmp_path: Path) -> None:
    under = ("unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child")
    with known_tasks(python, tmp_path, count=8, under=under) as (process, truth):
        (pid,) = map(int, Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
        found = tasks(look(pid, python.minor))
        assert differing(found, truth) == {}
        assert {task.tid for task in found.values()} == {pid}


@each_python()
@pytest.mark.parametrize("churn", [0, 2000], ids=["still", "churning"])
def test_uvloop(python: Python, churn: int, tmp_path: Path) -> None:
    needs_modules(python, "uvloop")
    with known_tasks(python, tmp_path, "uvloop", "threads", count=1000, churn=churn) as (process, truth):
        found = tasks(look(process.pid, python.minor))
        assert len(truth) > 3000
        assert differing(found, truth) == {}
        assert len({found[name].tid for name in truth}) == 3


REQUESTS = 30
# KIND, loop, HTTP parser of uvicorn, path, more, frames that each has, modules.
ENGINES = {
    "uvicorn": ("fastapi", "asyncio", "h11", "/hang", "", "fastapi uvicorn"),
    "uvicorn-uvloop-httptools": ("fastapi", "uvloop", "httptools", "/hang", "", "fastapi uvicorn uvloop httptools"),
    "uvicorn-middleware": ("fastapi", "uvloop", "h11", "/hang", "middleware", "fastapi uvicorn uvloop"),
    "uvicorn-stream": ("fastapi", "asyncio", "httptools", "/stream", "", "fastapi uvicorn httptools"),
    "aiohttp": ("aiohttp", "asyncio", "-", "/hang", "", "aiohttp"),
    "aiohttp-uvloop": ("aiohttp", "uvloop", "-", "/hang", "", "aiohttp uvloop"),
    "streams": ("streams", "asyncio", "-", "/hang", "", ""),
}


@contextlib.contextmanager
def hung_requests(port: int, path: str) -> Iterator[dict[str, str]]:
    """Thirty requests that get no answer: request id by the client's address."""
    with contextlib.ExitStack() as stack:
        sent = {}
        for number in range(REQUESTS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            head = (
                f"POST {path}?key=secret HTTP/1.1\r\nHost: engine\r\nX-Request-Id: id-{number}\r\nContent-Length: 0\r\n"
            )
            connection.sendall(f"{head}Authorization: Bearer secret\r\n\r\n".encode())
            sent["{}:{}".format(*connection.getsockname())] = f"id-{number}"
        yield sent


@each_python()
@pytest.mark.parametrize("engine", ENGINES)
def test_each_hung_request_is_tied_to_its_task_and_connection(python: Python, engine: str) -> None:
    kind, loop, http, path, more, modules = ENGINES[engine]
    needs_modules(python, *modules.split())
    program = str(PROGRAMS / "hanging_engine.py")
    with child(python.path, program, kind, loop, http, more, ready=False) as process, contextlib.ExitStack() as stack:
        sent = stack.enter_context(hung_requests(int(process.stdout.readline()), path))

        def hanging() -> list[AsyncioTask]:
            found = look(process.pid, python.minor).snapshot().asyncio_tasks
            return [each for each in found if any(f.function.endswith("wait_one_response") for f in each.frames)]

        until(lambda: len(hanging()) == REQUESTS)
        found = hanging()
        assert {each.doubt for each in found} == {""}
        # The descriptor is that of the connection from that client.
        inodes = {number: inode for inode, number in sockets_of(f"/proc/{process.pid}").items()}
        remotes = remote_of_inode(process.pid)
        by_fd = {each.fd: remotes[inodes[each.fd]] for each in found if each.fd is not None}
        assert sorted(by_fd.values()) == sorted(sent)
        if kind != "streams":
            assert {(each.method, each.path) for each in found} == {("POST", path)}
            assert {each.request_id: each.engine_request_id for each in found} == {
                name: f"engine-{name}" for name in sent.values()
            }
            assert {by_fd[each.fd]: each.request_id for each in found} == sent
        if kind == "fastapi":
            assert all(each.peer_address == by_fd[each.fd] for each in found)
        assert "secret" not in repr(found)


def remote_of_inode(pid: int) -> dict[int, str]:
    """Remote address of each TCP connection, by inode, as the kernel's own table has it."""
    found = {}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        address, port = fields[2].split(":")
        found[int(fields[9])] = f"{socket.inet_ntoa(bytes.fromhex(address)[::-1])}:{int(port, 16)}"
    return found


def needs_modules(which: Python, *modules: str) -> None:
    if not which.has(*modules):
        pytest.skip(f"this Python {which.version} lacks one of {', '.join(modules)}")


def test_those_without_tasks() -> None:
    with (
        python("import time; print('ready', flush=True); time.sleep(600)") as plain,
        child("sleep", "600", ready=False) as other,
    ):
        targets = [
            target(plain.pid, role=Process.Role.CLIENT, python="3.11"),
            target(other.pid, role=Process.Role.CLIENT),
            target(other.pid + 100_000, role=Process.Role.CLIENT),
        ]
        kept = run(SNAPSHOT_ASYNCIO_TASKS, targets)
        assert kept.misses == {}
        assert sorted(kept.finished) == sorted(each.pid for each in targets)
        assert kept.snapshot().asyncio_tasks == ()


def test_a_version_that_is_not_known_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freezeframe.agentd.host.cpython.interpreter.TABLES", {"3.9": {}})
    with python("import asyncio, time; print('ready', flush=True); time.sleep(600)") as process:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        kept = look(process.pid, version)
        assert kept.misses == {process.pid: f"the layout of Python {version} is not known: 3.9 are"}


def test_memory_that_was_stuck_is_left_alone() -> None:
    kept = run(
        SNAPSHOT_ASYNCIO_TASKS, [target(os.getpid(), role=Process.Role.CLIENT, python="3.11", memory_blocked=True)]
    )
    assert kept.misses == {os.getpid(): "its memory was stuck before: left alone"}
    assert kept.parts == 0
