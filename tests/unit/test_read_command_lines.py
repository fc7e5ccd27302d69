from __future__ import annotations

import os
from pathlib import Path

import pytest

from freezeframe.agentd.collectors.read_command_lines import READ_COMMAND_LINES
from freezeframe.agentd.host import Host
from freezeframe.agentd.jobs import Target
from freezeframe.judge.model import Process
from tests.support.proc_tree import ProcTree
from tests.support.report import run

UNIT = """[Service]
ExecStart=
ExecStart=-/venv/bin/python -m sglang_router.launch_router \\
  --port 30000 --api-key "top secret" --policy=cache_aware
"""


def read(root: Path, pid: int, **known: object) -> Process | None:
    kept = run(READ_COMMAND_LINES, [Target(pid=pid, start_ticks=1000, **known)], host=Host(root=root))
    return next(iter(kept.snapshot().processes), None)


def test_an_ordinary_command_line(tmp_path: Path) -> None:
    ProcTree(tmp_path).add(7, cmdline=b"python\0-m\0sglang.launch_server\0--api-key\0x y\0\0")
    process = read(tmp_path, 7)
    assert process == Process(
        pid=7,
        start_ticks=1000,
        title="python -m sglang.launch_server --api-key … …",
        argv=("python", "-m", "sglang.launch_server", "--api-key", "…", "…"),
        argv_source="own",
    )


@pytest.mark.parametrize("padding", [b"\0" * 40, b" " * 40 + b"\0", b"\0"])
def test_a_title_has_the_flags_of_the_parent_that_runs_the_same_program(tmp_path: Path, padding: bytes) -> None:
    tree = ProcTree(tmp_path)
    tree.add(6, exe="/usr/bin/python3.11", cmdline=b"python3\0-m\0sglang.launch_server\0--port\x0030000\0")
    tree.add(7, parent=6, exe="/usr/bin/python3.11", cmdline=b"sglang::scheduler_TP0" + padding)
    process = read(tmp_path, 7)
    assert process is not None
    assert process.title == "sglang::scheduler_TP0"
    assert process.argv == ("python3", "-m", "sglang.launch_server", "--port", "30000")
    assert process.argv_source == "parent"


@pytest.mark.parametrize("name", ["router.service", "router@1.service"])
def test_a_title_has_the_flags_of_its_unit_where_the_parent_is_another_program(tmp_path: Path, name: str) -> None:
    tree = ProcTree(tmp_path)
    tree.add(6, exe="/usr/lib/systemd/systemd", cmdline=b"/sbin/init\0")
    cgroup = b"0::/system.slice/system-router.slice/%s\n" % name.encode()
    tree.add(7, parent=6, exe="/usr/bin/python3.11", cgroup=cgroup, cmdline=b"sglang::router" + b"\0" * 9)
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    (units / name.replace("@1", "@")).write_text(UNIT)
    process = read(tmp_path, 7)
    assert process is not None
    assert process.argv == (
        "/venv/bin/python", "-m", "sglang_router.launch_router", "--port", "30000", "--api-key", "…",
        "--policy=cache_aware",
    )  # fmt: skip
    assert process.argv_source == "unit"


@pytest.mark.parametrize("blank", [b"\0" * 60, b" " * 60, b" " * 59 + b"\0"])
def test_arguments_that_were_blanked_have_their_source_named(tmp_path: Path, blank: bytes) -> None:
    tree = ProcTree(tmp_path)
    tree.add(6, exe="/usr/bin/python3.11", cmdline=b"python3\0-m\0sglang.launch_server\0--port\x0030000\0")
    tree.add(7, parent=6, exe="/usr/bin/python3.11", cmdline=blank)
    tree.add(8, exe="/venv/bin/smg", cgroup=b"0::/system.slice/router.service\n", cmdline=blank)
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    (units / "router.service").write_text("[Service]\nExecStart=/venv/bin/smg launch --port 30000\n")
    child, service = read(tmp_path, 7), read(tmp_path, 8)
    assert child is not None
    assert service is not None
    assert (child.title, child.argv_source) == ("", "parent")
    assert child.argv == ("python3", "-m", "sglang.launch_server", "--port", "30000")
    assert (service.argv, service.argv_source) == (("/venv/bin/smg", "launch", "--port", "30000"), "unit")


def test_drop_ins_change_the_command_of_a_unit(tmp_path: Path) -> None:
    ProcTree(tmp_path).add(7, cgroup=b"0::/system.slice/router@1.service\n", cmdline=b"sglang::router" + b"\0" * 9)
    base, local, run_time = (
        tmp_path / "usr/lib/systemd/system", tmp_path / "etc/systemd/system", tmp_path / "run/systemd/system",
    )  # fmt: skip
    for folder in (base, local / "router@.service.d", run_time / "router@1.service.d"):
        folder.mkdir(parents=True)
    (base / "router@.service").write_text("[Service]\nExecStart=/bin/smg --port 1\n")
    # Later by name, not by place.
    (run_time / "router@1.service.d/10-port.conf").write_text("[Service]\nExecStart=\nExecStart=/bin/smg --port 2\n")
    (local / "router@.service.d/20-port.conf").write_text("[Service]\nExecStart=\nExecStart=/bin/smg --port 3\n")
    # Another file of the same name where systemd looks first.
    (local / "router@.service.d/10-port.conf").write_text("[Service]\n")
    process = read(tmp_path, 7)
    assert process is not None
    assert (process.argv, process.argv_source) == (("/bin/smg", "--port", "3"), "unit")
    (local / "router@.service.d/20-port.conf").unlink()
    process = read(tmp_path, 7)
    assert process is not None
    assert process.argv == ("/bin/smg", "--port", "1")


def test_a_title_without_any_source_of_flags(tmp_path: Path) -> None:
    ProcTree(tmp_path).add(7, exe="/usr/sbin/nginx", cmdline=b"nginx: worker process\0")
    process = read(tmp_path, 7)
    assert process is not None
    assert (process.title, process.argv, process.argv_source) == ("nginx: worker process", (), "")


def test_a_program_without_arguments_is_no_title(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.add(7, exe="/usr/bin/redis-server", cmdline=b"./redis-server\0")
    tree.add(8, exe="/usr/bin/bash", cmdline=b"-bash\0")
    assert [read(tmp_path, pid).argv_source for pid in (7, 8)] == ["own", "own"]  # type: ignore[union-attr]


def test_a_zombie_a_gone_one_and_another_one_with_the_pid(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.add(7, state=b"Z", exe=None, cmdline=b"")
    tree.add(8, start=2000)
    targets = [Target(pid=pid, start_ticks=1000) for pid in (7, 8, 9)]
    kept = run(READ_COMMAND_LINES, targets, host=Host(root=tmp_path))
    assert kept.snapshot().processes == (Process(pid=7, start_ticks=1000),)
    assert kept.misses == {8: "the process ended and another one has its pid now"}
    assert kept.finished == [7, 9]


def stall(tree: ProcTree, pid: int, call: bytes, where: bytes) -> None:
    directory = tree.add(pid, tids=(pid, pid + 1))
    thread = directory / "task" / str(pid + 1)
    (thread / "stat").write_bytes((thread / "stat").read_bytes().replace(b") S", b") D"))
    (thread / "wchan").write_bytes(where)
    (thread / "syscall").write_bytes(call)


MMAP = b"9 0x0 0x1000 0x3 0x22 0x0 0x0 0x7ffc 0x7f10\n"
FAULT = b"-1 0x7ffc 0x7f10\n"


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of x86_64")
@pytest.mark.parametrize(
    ("call", "wchan", "where"),
    [(MMAP, b"vm_mmap_pgoff", "mmap"), (MMAP, b"0", "mmap"), (FAULT, b"do_user_addr_fault", "a page fault")],
)
def test_a_stalled_memory_lock_is_seen_and_left_alone(tmp_path: Path, call: bytes, wchan: bytes, where: str) -> None:
    stall(ProcTree(tmp_path), 100, call, wchan)
    os.unlink(tmp_path / "proc/100/cmdline")
    kept = run(READ_COMMAND_LINES, [Target(pid=100, start_ticks=1000)], host=Host(root=tmp_path))
    assert kept.snapshot().processes == (Process(pid=100, memory_blocked=True),)
    assert kept.misses == {100: f"thread 101 waits for the memory lock in {where}: left alone"}


@pytest.mark.parametrize(
    ("call", "wchan"),
    [
        (b"1 0x3 0x0 0x1 0x0 0x0 0x0 0x7ffc 0x7f10\n", b"rwsem_down_write_slowpath"),
        (b"58 0x0 0x0 0x0 0x0 0x0 0x0 0x7ffc 0x7f10\n", b"kernel_clone"),
        (MMAP, b"folio_wait_bit_common"),
        (FAULT, b"folio_wait_bit_common"),
        (FAULT, b"0"),
    ],
)
def test_another_wait_is_no_stall(tmp_path: Path, call: bytes, wchan: bytes) -> None:
    stall(ProcTree(tmp_path), 100, call, wchan)
    process = read(tmp_path, 100)
    assert process is not None
    assert process.argv_source == "own"


def test_a_target_that_was_stuck_before_is_left_alone(tmp_path: Path) -> None:
    ProcTree(tmp_path).add(7)
    kept = run(READ_COMMAND_LINES, [Target(pid=7, start_ticks=1000, memory_blocked=True)], host=Host(root=tmp_path))
    assert (kept.parts, kept.finished, kept.misses) == (0, [], {7: "its memory was stuck before: left alone"})
