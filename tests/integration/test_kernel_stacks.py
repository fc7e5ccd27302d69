"""The helper that opens kernel stacks: what it gives, to whom, and that it alone is not enough to read one."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from freezeframe.agentd.host import Host, kernel_stacks, procfs
from tests.support.children import python
from tests.support.kernel_stacks import as_nobody, as_root, running_helper

pytestmark = pytest.mark.needs("root")

# A worker with what the agent has of this, without CAP_SYS_ADMIN.
ASK = """
import json, sys
from freezeframe.agentd.host import Host, kernel_stacks, procfs
reader = kernel_stacks.KernelStacks(Host(kernel_stacks=sys.argv[1]))
found = []
for each in sys.argv[2:]:
    pid, tid = map(int, each.split("/"))
    try:
        found.append(reader.read(pid, tid))
    except procfs.ProcfsError as error:
        found.append([type(error).__name__, str(error)])
print(json.dumps(found))
"""
STRANGER = """
import os, socket, sys
os.setgroups([])
os.setuid(12345)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as helper:
    helper.settimeout(60)
    helper.connect(sys.argv[1])
    print(helper.recv(9))
"""
SLEEPER = "import threading; print('up', flush=True); threading.Event().wait()"


@pytest.fixture(scope="module")
def helper() -> Iterator[Path]:
    with running_helper() as path:
        yield path


def asked(
    path: Path,
    *threads: str,
    capabilities: tuple[str, ...] = ("sys_ptrace", "dac_read_search"),
    who: Callable[..., list[str]] = as_nobody,
) -> list[list[str]]:
    done = subprocess.run(
        [*who(*capabilities), sys.executable, "-c", ASK, str(path), *threads],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: list[list[str]] = json.loads(done.stdout)
    return found


def test_a_worker_without_the_capability_reads_what_the_helper_opens(helper: Path) -> None:
    with python(SLEEPER) as process:
        thread = f"{process.pid}/{process.pid}"
        read, again, gone = asked(helper, thread, thread, f"{process.pid}/{os.getpid()}")
    assert any(frame.startswith("futex_wait") for frame in read)
    assert again == read
    assert gone[0] == "GoneError"


def test_so_does_root_of_a_container_without_it() -> None:
    five = ("bpf", "perfmon", "sys_ptrace", "dac_read_search", "syslog")
    with python(SLEEPER) as process, running_helper(uid=0) as path:
        thread = f"{process.pid}/{process.pid}"
        (found,) = asked(path, thread, capabilities=five, who=as_root)
        (denied,) = asked(path.parent / "none", thread, capabilities=five, who=as_root)
    assert any(frame.startswith("futex_wait") for frame in found)
    assert denied[0] == "DeniedError"


def test_without_a_helper_it_is_denied(tmp_path: Path) -> None:
    (found,) = asked(tmp_path / "socket", f"{os.getpid()}/{os.getpid()}")
    assert found == ["DeniedError", f"reading /proc/{os.getpid()}/task/{os.getpid()}/stack: Permission denied"]


def test_what_it_opens_is_read_by_those_only_who_may_trace(helper: Path) -> None:
    """The helper itself has no CAP_SYS_PTRACE; what it gives is worth nothing without."""
    (found,) = asked(helper, f"{os.getpid()}/{os.getpid()}", capabilities=("dac_read_search",))
    assert found[0] == "DeniedError"


def test_another_user_is_not_answered() -> None:
    """Not even where the modes of directory and socket would let that user in."""
    with running_helper() as path:
        assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
        path.parent.chmod(0o711)
        path.chmod(0o666)
        done = subprocess.run([sys.executable, "-c", STRANGER, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "b''\n"


def test_what_is_no_question_ends_the_connection_and_no_other(helper: Path) -> None:
    def connection() -> socket.socket:
        found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        found.settimeout(60)
        found.connect(str(helper))
        return found

    with connection() as silent, connection() as wrong, connection() as right:
        silent.settimeout(60)
        for question in (b"x" * 9, b"x", b"/proc/1/stack"):
            with connection() as each:
                each.send(question)
                assert each.recv(9) == b""
        wrong.send(struct.pack("=II", 2**32 - 1, 0))
        assert struct.unpack("=I", wrong.recv(9)) == (2,)
        right.send(struct.pack("=II", os.getpid(), os.getpid()))
        data, descriptors, _, _ = socket.recv_fds(right, 9, 4)
        assert (data, len(descriptors)) == (bytes(4), 1)
        assert os.readlink(f"/proc/self/fd/{descriptors[0]}") == f"/proc/{os.getpid()}/task/{os.getpid()}/stack"
        os.close(descriptors[0])


def test_a_program_of_another_user_is_not_asked(helper: Path) -> None:
    assert kernel_stacks.KernelStacks(Host(kernel_stacks=str(helper)))._reach() is None


def test_a_helper_that_ended_is_a_refusal() -> None:
    reader = kernel_stacks.KernelStacks(Host())
    reader._helper, ended = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader._denied = True
    ended.close()
    for _ in range(2):
        with pytest.raises(procfs.DeniedError, match="the helper for kernel stacks does not answer"):
            reader.read(os.getpid(), os.getpid())
