from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from freezeframe.agentd.supervisor import AlreadyRunningError, child_environment, lock
from freezeframe.v1 import service_pb2, service_pb2_grpc
from tests.support.daemon import Daemon, healthy, running_daemon

PROGRAM = Path(__file__).parents[1] / "programs" / "supervise.py"
# Of the daemon's processes, at random moments; the long run is FREEZEFRAME_KILLS=300.
KILLS = int(os.environ.get("FREEZEFRAME_KILLS", "24"))
BACK_S = 3.0


def until(condition: Callable[[], object], *, seconds: float = 10.0) -> float:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() < begin + seconds, "the condition did not come about"
        time.sleep(0.01)
    return time.monotonic() - begin


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def status(pid: int, field: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{field}:"))


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return status(pid, "State") not in "ZX"
    return False


@dataclass
class Supervised:
    process: subprocess.Popen[bytes]
    folder: Path

    def told(self, name: str) -> dict[str, Any]:
        told: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        return told

    def pid(self, name: str) -> int:
        """Of the child that runs now; 0 while none has told."""
        with contextlib.suppress(FileNotFoundError):
            pid: int = self.told(name)["pid"]
            return pid if lives(pid) else 0
        return 0


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Supervised]:
    environment = {**os.environ, "PYTHONSTARTUP": "/x", "LD_DEBUG_OUTPUT": "/x", "GCONV_PATH": "/x", "KEPT": "yes"}
    # A descriptor that the supervisor has from elsewhere: its children do not get it.
    read_end, write_end = os.pipe()
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(tmp_path)],
            env=environment, stderr=log, cwd=tmp_path, pass_fds=(write_end,),
        )  # fmt: skip
    os.close(write_end)
    it = Supervised(process, tmp_path)
    try:
        until(lambda: it.pid("launcher") and it.pid("front"))
        yield it
    finally:
        process.kill()
        process.wait(5)
        until(lambda: not it.pid("launcher") and not it.pid("front"))
        os.close(read_end)


def test_children_get_what_they_need_and_nothing_else(supervised: Supervised) -> None:
    for name in ("launcher", "front"):
        told = supervised.told(name)
        assert (told["cwd"], told["leads_session"], told["descriptors"]) == ("/", True, [0, 1, 2, 3])
        environment = told["environment"]
        assert environment["FREEZEFRAME_SUPERVISOR_PID"] == str(supervised.process.pid)
        assert (environment["KEPT"], environment["GRPC_ENABLE_FORK_SUPPORT"]) == ("yes", "0")
        assert not [key for key in environment if key.startswith(("LD_", "PYTHON", "GCONV_"))]


def test_a_child_is_started_again_alone(supervised: Supervised) -> None:
    launcher = supervised.pid("launcher")
    fronts = [supervised.pid("front")]
    for _ in range(4):
        os.kill(fronts[-1], signal.SIGKILL)
        until(lambda: supervised.pid("front") not in (0, fronts[-1]), seconds=BACK_S)
        fronts.append(supervised.pid("front"))
    assert supervised.pid("launcher") == launcher
    assert sorted(children(supervised.process.pid)) == sorted([launcher, fronts[-1]])


def test_children_end_with_a_killed_supervisor_and_its_lock_is_free(supervised: Supervised) -> None:
    with pytest.raises(AlreadyRunningError):
        lock(str(supervised.folder))
    # Even with a child that does nothing any more.
    os.kill(supervised.pid("launcher"), signal.SIGSTOP)
    supervised.process.kill()
    supervised.process.wait(5)
    os.close(lock(str(supervised.folder)))
    os.kill(supervised.told("launcher")["pid"], signal.SIGCONT)
    until(lambda: not supervised.pid("launcher") and not supervised.pid("front"), seconds=BACK_S)


def test_told_to_stop_it_stops_them_first(supervised: Supervised) -> None:
    supervised.process.terminate()
    assert supervised.process.wait(10) == 0
    assert not supervised.pid("launcher")
    assert not supervised.pid("front")


def test_what_changes_the_code_a_child_loads_is_left_out() -> None:
    kept = child_environment({"PATH": "/bin", "LD_PRELOAD": "x", "PYTHONPATH": "x", "LDAP": "x"}, 42)
    assert kept == {
        "PATH": "/bin", "LDAP": "x", "GRPC_ENABLE_FORK_SUPPORT": "0", "FREEZEFRAME_SUPERVISOR_PID": "42",
    }  # fmt: skip


def agent_processes(agent: Daemon) -> list[int]:
    """Launcher, recorder, front and the workers."""
    found = []
    for child in children(agent.pid):
        with contextlib.suppress(OSError):
            found += [child, *children(child)]
    return found


def capture_until(stop: threading.Event, agent: Daemon, pid: int, done: list[bool]) -> None:
    while not stop.is_set():
        with grpc.insecure_channel(agent.address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = service_pb2_grpc.CaptureServiceStub(channel)
            request = service_pb2.CaptureRequest(window_ms=0, deadline_ms=2000, pids=[pid])
            try:
                list(stub.Capture(request, timeout=4, wait_for_ready=True))
                done.append(True)
            except grpc.RpcError:
                done.append(False)


@pytest.mark.needs("root")
@pytest.mark.timeout(60 + 4 * KILLS)
def test_random_kills_during_captures_leave_nothing_behind() -> None:
    chance = random.Random(7)
    target = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    stop, done = threading.Event(), list[bool]()
    with running_daemon() as agent:
        capturing = threading.Thread(target=capture_until, args=(stop, agent, target.pid, done))
        capturing.start()
        try:
            descriptors = len(os.listdir(f"/proc/{agent.pid}/fd"))
            for _ in range(KILLS):
                time.sleep(chance.uniform(0, 0.3))
                victim = chance.choice(agent_processes(agent))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                until(lambda: len(children(agent.pid)) == 3 and healthy(agent.address), seconds=BACK_S)
            until(lambda: done and done[-1])
        finally:
            stop.set()
            capturing.join(10)
        until(lambda: len(os.listdir(f"/proc/{agent.pid}/fd")) == descriptors)
        until(lambda: len(agent_processes(agent)) == 3)
        assert all(lives(pid) for pid in agent_processes(agent))
        assert (status(target.pid, "State"), status(target.pid, "TracerPid")) == ("S", "0")
        left = agent_processes(agent)
        os.kill(agent.pid, signal.SIGKILL)
        until(lambda: not any(map(lives, left)), seconds=BACK_S)
        os.close(lock(str(agent.runtime_dir)))
    target.kill()
    target.wait(5)


@pytest.mark.needs("root")
def test_a_new_agent_takes_over_at_once_from_a_killed_one() -> None:
    with running_daemon() as agent:
        os.kill(agent.pid, signal.SIGKILL)
        begin = time.monotonic()
        next_one = subprocess.Popen(
            [
                sys.executable, "-m", "freezeframe.agentd",
                "--runtime-dir", str(agent.runtime_dir), "--state-dir", str(agent.state_dir),
            ],
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            until(lambda: len(children(next_one.pid)) == 3)
            until(lambda: healthy(agent.address) and len(children(next_one.pid)) == 3)
            assert time.monotonic() - begin < BACK_S + 5
        finally:
            next_one.terminate()
            assert next_one.wait(10) == 0


@pytest.mark.needs("root")
def test_it_runs_without_standard_streams(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [
        sys.executable, "-m", "freezeframe.agentd", "--runtime-dir", str(run), "--state-dir", str(tmp_path / "s"),
    ]  # fmt: skip
    process = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command])
    try:
        until(lambda: healthy(f"unix:{run}/capture.sock"), seconds=20)
        for pid in (process.pid, *children(process.pid)):
            assert {os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)} == {os.devnull}
    finally:
        process.terminate()
        assert process.wait(10) == 0
