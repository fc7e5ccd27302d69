"""snapshot_native_stacks beside gdb and eu-stack: the same functions in the same order, of C, Rust and real routers."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable

import pytest

from freezeframe.agentd.host import procfs
from freezeframe.agentd.host.native.demangle import demangle
from freezeframe.judge.model import NativeThread
from tests.support import eu_stack, gdb, report
from tests.support.children import child
from tests.support.compiled import rust_program
from tests.support.native_stacks import OF_THE_PROGRAM, resting, stacks_of, waits

pytestmark = pytest.mark.needs("bpf", "gcc")

Backtraces = dict[int, list[tuple[int, str]]]
OTHERS = [
    pytest.param(gdb.backtraces, id="gdb", marks=pytest.mark.needs("gdb")),
    pytest.param(eu_stack.backtraces, id="eu-stack", marks=pytest.mark.needs("eu-stack")),
]
each_other = pytest.mark.parametrize("other", OTHERS)
V0 = ("-C", "symbol-mangling-version=v0")


def compared(pid: int, threads: dict[int, NativeThread], theirs: Backtraces) -> int:
    """Compare every sound stack with theirs, frame by frame; gives the number of frames compared."""
    count = 0
    for tid, thread in threads.items():
        if thread.doubt:
            continue
        ours = [plain(frame.function) for frame in thread.frames]
        named = [plain(demangle(name.encode())) for _, name in theirs[tid]]
        assert len(ours) == len(named), (tid, ours, named)
        for mine, other in zip(ours, named, strict=True):
            # "": they know less. The linker folds equal functions, so that one address has several names.
            assert mine == other or not other or other in folded(pid, mine), (tid, ours, named)
        count += len(ours)
    return count


def folded(pid: int, name: str) -> set[str]:
    """Other names of the functions that start where one of this name does, by the program's own symbols."""
    said = subprocess.run(["nm", f"/proc/{pid}/exe"], capture_output=True, text=True, check=True).stdout
    names: dict[str, set[str]] = {}
    for line in said.splitlines():
        address, _, mangled = line.rpartition(" ")
        names.setdefault(address[:16], set()).add(plain(demangle(mangled.encode())))
    return set().union(*(each for each in names.values() if name in each))


def plain(name: str) -> str:
    """A name without what tells names of one function apart: hash and clone suffixes, libc's own prefixes."""
    name = re.sub(r"\[[0-9a-f]{8,16}\]|::h[0-9a-f]{16}$|@@?[A-Z].*$| \[clone .*\]$", "", name)
    return re.sub(r"^(__GI_|__libc_(?!start)|__new_|__)+", "", name)


@each_other
def test_waits_of_c(other: Callable[[int], Backtraces]) -> None:
    # Both hang on the parent of a vfork, which is in state D.
    with waits(*OF_THE_PROGRAM.keys() - {"vfork"}) as (pid, _):
        threads, _kept = stacks_of(pid)
        assert compared(pid, threads, other(pid)) > 50


@pytest.mark.needs("rustc")
@each_other
@pytest.mark.parametrize("stripped", [False, True], ids=["whole", "stripped"])
@pytest.mark.parametrize("count", [1, 8, 64, 512])
def test_threads_of_rust(other: Callable[[int], Backtraces], count: int, stripped: bool) -> None:
    options = (*V0, "-C", "strip=symbols") if stripped else V0
    with child(rust_program("parked", *options), str(count)) as process:
        resting(process.pid, procfs.tids(f"/proc/{process.pid}"))
        threads, _ = stacks_of(process.pid)
        assert compared(process.pid, threads, other(process.pid)) > 25 * count


ROUTERS = {
    # Both take what a router is told; each is a Python program with 90 MB of Rust, smg's with the newer mangling.
    "sglang-router": ("-m", "sglang_router.launch_router"),
    "smg": ("-m", "smg.launch_router"),
}
CPUS = len(os.sched_getaffinity(0))


@pytest.mark.needs("e2e")
@each_other
@pytest.mark.parametrize("name", ROUTERS)
def test_a_real_router(other: Callable[[int], Backtraces], name: str) -> None:
    ports = [str(free_port()), "--prometheus-port", str(free_port())]
    command = [sys.executable, *ROUTERS[name], "--host", "127.0.0.1", "--port", *ports]
    command += ["--worker-urls", "http://127.0.0.1:9", "--worker-startup-timeout-secs", "1000"]
    router = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        report.until(lambda: len(procfs.tids(f"/proc/{router.pid}")) >= 3 + CPUS, seconds=60)

        def same() -> bool:
            # Its threads wake up now and then: both witnesses must have met the same waits.
            threads, _ = stacks_of(router.pid)
            sound = [thread for thread in threads.values() if not thread.doubt]
            theirs = other(router.pid)
            if any(len(theirs.get(each.tid, ())) != len(each.frames) for each in sound) or len(sound) < 2 + CPUS:
                return False
            pairs = [
                (plain(frame.function), plain(demangle(name.encode())))
                for thread in sound
                for frame, (_, name) in zip(thread.frames, theirs[thread.tid], strict=True)
            ]
            return len(pairs) > 50 and all(mine == named or not named for mine, named in pairs)

        report.until(same, seconds=60)
    finally:
        router.kill()
        router.wait(20)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
