"""The agent as its unit starts it: another user than root, five capabilities, a mount namespace of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from freezeframe.agentd.host import kernel_stacks
from tests.bed.bed import Bed
from tests.support.children import child, python
from tests.support.command import freezeframe, snap
from tests.support.daemon import Daemon, running_daemon
from tests.support.kernel_stacks import running_helper
from tests.support.network import network
from tests.support.report import until

pytestmark = [pytest.mark.needs("root", "bpf"), pytest.mark.timeout(300)]

FIVE = ("bpf", "perfmon", "sys_ptrace", "dac_read_search", "syslog")
# Their bits.
MASK = 1 << 39 | 1 << 38 | 1 << 19 | 1 << 2 | 1 << 34
NONE = "0" * 16
# A connection of its own, both ends, and a thread that waits.
TARGET = """
import os, socket, sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
listener = socket.create_server(("127.0.0.1", 0))
kept = socket.create_connection(listener.getsockname()), listener.accept()
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
print("up", flush=True)
threading.Event().wait()
"""
OTHER_USER = "12345"
_DENIED = ("PARTIAL", kernel_stacks.HINT)
WITHOUT_KERNEL_STACKS = {"snapshot_processes": _DENIED, "snapshot_native_stacks": _DENIED}
# Of a capture without options.
EVERY_ONE = {
    "snapshot_processes", "snapshot_python_stacks", "snapshot_asyncio_tasks", "snapshot_native_stacks",
    "snapshot_locks", "snapshot_sockets", "trace_requests", "trace_futex", "sample_metrics", "read_gauges",
    "snapshot_gpus", "read_debug_traces", "read_logs", "read_kernel_log", "snapshot_host", "read_history",
}  # fmt: skip


def capture(agent: Daemon, folder: Path, *pids: int) -> dict[str, Any]:
    watched = [argument for pid in pids for argument in ("-p", str(pid))]
    return snap(agent.address, "--trust-socket-owner", "--deadline", "60", *watched, cwd=folder)


def capabilities(agent: Daemon, folder: Path) -> dict[str, dict[str, str]]:
    done = freezeframe("--output", "json", "doctor", "--trust-socket-owner", agent.address, cwd=folder)
    assert done.returncode == 0, done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)["capabilities"]}


def outcomes(snapshot: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["collector"]: (each["status"], each["hint"] or each["detail"]) for each in snapshot["outcomes"]}


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("client")
    with running_daemon(nobody_with=FIVE) as daemon:
        until(lambda: capabilities(daemon, folder)["recorder"]["state"] == "PRESENT", seconds=60)
        yield daemon


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_each_of_its_processes_has_what_it_needs_and_the_front_nothing(agent: Daemon) -> None:
    found = {}
    listed = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    for pid in (agent.pid, *map(int, listed)):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        found[command[2]] = status(pid)
    assert set(found) == {
        "freezeframe.agentd", "freezeframe.agentd.launcher", "freezeframe.agentd.recorder.service",
        "freezeframe.agentd.composition",
    }  # fmt: skip
    for name, each in found.items():
        assert each["Uid"].split() == ["65534"] * 4
        assert each["NoNewPrivs"] == "1"
        if name == "freezeframe.agentd.composition":
            assert (each["CapPrm"], each["CapEff"], each["CapInh"], each["CapAmb"]) == (NONE, NONE, NONE, NONE)
        else:
            assert int(each["CapEff"], 16) == int(each["CapPrm"], 16) == int(each["CapBnd"], 16) == MASK


def test_a_target_of_a_third_user_is_seen_but_for_kernel_stacks(agent: Daemon, tmp_path: Path) -> None:
    with python(TARGET, OTHER_USER) as process:
        snapshot = capture(agent, tmp_path, process.pid)
    assert {name for name, found in outcomes(snapshot).items() if found[0] == "PARTIAL"} == set(WITHOUT_KERNEL_STACKS)
    assert [len(each["frames"]) > 1 for each in snapshot["native_threads"]] == [True, True]
    established = [each["pid"] for each in snapshot["sockets"] if each["state"] == "ESTAB"]
    assert established == [process.pid, process.pid]


@pytest.mark.needs("e2e")
def test_every_collector_is_ok_but_for_kernel_stacks(agent: Daemon, tmp_path: Path) -> None:
    with Bed.start(wedge="router-dual-leg") as bed:
        bed.wait_wedged(settled=True)
        decode = bed.pids.decode
        snapshot = capture(agent, tmp_path, *bed.pids.all())
    found = outcomes(snapshot)
    assert set(found) == EVERY_ONE
    # Where there is a GPU it is OK; symbols of a large program take their time on a busy machine.
    found = {
        name: each for name, each in found.items() if name != "snapshot_gpus" and "no answer within" not in each[1]
    }
    assert {name: each for name, each in found.items() if each[0] != "OK"} == WITHOUT_KERNEL_STACKS
    assert {each["pid"] for each in snapshot["python_threads"]} >= {decode.http, decode.scheduler}
    assert decode.http in {each["pid"] for each in snapshot["asyncio_tasks"]}
    assert snapshot["verdict"]["code"] == "ROUTER_DUAL_LEG"


def test_with_the_helper_kernel_stacks_are_seen_too(tmp_path: Path) -> None:
    settings = tmp_path / "agentd.toml"
    with running_helper() as helper:
        settings.write_text(f'kernel_stacks = "{helper}"\n')
        with (
            running_daemon("--config", str(settings), nobody_with=FIVE) as daemon,
            python(TARGET, OTHER_USER) as process,
        ):
            found = capabilities(daemon, tmp_path)
            snapshot = capture(daemon, tmp_path, process.pid)
    assert (found["CAP_SYS_ADMIN"]["state"], found["kernel stacks"]["state"]) == ("LIMITED", "PRESENT")
    assert {name: each for name, each in outcomes(snapshot).items() if name in WITHOUT_KERNEL_STACKS} == dict.fromkeys(
        WITHOUT_KERNEL_STACKS, ("OK", "")
    )
    (seen,) = (each for each in snapshot["processes"] if each["pid"] == process.pid)
    assert [bool(thread["kernel_stack"]) for thread in seen["threads"]] == [True, True]
    assert [bool(thread["kernel_frames"]) for thread in snapshot["native_threads"]] == [True, True]


def test_sockets_of_another_network_namespace_are_seen_in_part(agent: Daemon, tmp_path: Path) -> None:
    with (
        network("apart") as net,
        child(*net.places["apart"].command(sys.executable, "-c", TARGET, OTHER_USER)) as process,
    ):
        snapshot = capture(agent, tmp_path, process.pid)
    found = outcomes(snapshot)
    assert "CAP_SYS_ADMIN" in found["snapshot_sockets"][1]
    partial = {name for name, each in found.items() if each[0] == "PARTIAL"}
    assert partial == {"snapshot_sockets", *WITHOUT_KERNEL_STACKS}


def test_doctor_names_what_is_missing_with_its_command(agent: Daemon, tmp_path: Path) -> None:
    found = capabilities(agent, tmp_path)
    assert found["root"]["detail"] == "runs as uid 65534, with the capabilities that it needs"
    bits = [each for name, each in found.items() if name.startswith("CAP_")]
    assert [each["name"] for each in bits if each["state"] != "PRESENT"] == ["CAP_SYS_ADMIN"]
    assert "kernel-stacks.conf && sudo systemctl daemon-reload" in found["CAP_SYS_ADMIN"]["hint"]
    assert found["kernel stacks"]["state"] == "LIMITED"
    assert found["kernel stacks"]["hint"] == "sudo systemctl enable --now freezeframe-kernel-stacks"
    assert found["recorder"]["state"] == "PRESENT"
    assert found["tracefs"]["state"] in ("PRESENT", "LIMITED")


def test_doctor_names_one_that_is_missing_of_the_five(tmp_path: Path) -> None:
    with running_daemon(nobody_with=[each for each in FIVE if each != "sys_ptrace"]) as daemon:
        found = capabilities(daemon, tmp_path)
    assert found["CAP_SYS_PTRACE"]["state"] == "ABSENT"
    assert "AmbientCapabilities=CAP_SYS_PTRACE" in found["CAP_SYS_PTRACE"]["hint"]
    assert found["root"]["state"] == "LIMITED"
