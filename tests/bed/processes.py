"""Starting, watching and ending the bed's processes, always by pid."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
EXEC_CHILD = Path(__file__).parent / "programs" / "exec_child.py"


class BedError(Exception):
    """The bed did not come up, or a wedge did not come into force; says what was waited for."""


@dataclass(frozen=True, kw_only=True)
class Child:
    """A process of the bed, started by this one."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]


def start(
    name: str, command: list[str], *, run_dir: Path, env: dict[str, str], memory_mib: int, namespace: str = ""
) -> Child:
    """Start `command` in a session of its own, with its output in ``run_dir/NAME.log`` (a regular file).

    `namespace` is the path of the network namespace that it shall be in. It may have at most `memory_mib` of private
    writable memory, and the kernel kills it when the calling thread ends: see ``programs/exec_child.py``.
    """
    log = run_dir / f"{name}.log"
    log.write_bytes(b"")
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", str(EXEC_CHILD), str(os.getpid()), str(memory_mib * MIB), namespace, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=run_dir,
            env=env,
            start_new_session=True,
        )
    return Child(name=name, process=process, log=log)


def stop(children: list[Child], *, grace_s: float = 3.0) -> None:
    """End every child: continue it, ask it, and kill it if it has not ended within `grace_s`."""
    for child in children:
        if child.process.poll() is None:
            child.process.send_signal(signal.SIGCONT)
            child.process.terminate()
    deadline = time.monotonic() + grace_s
    for child in children:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait(5)


def wait_for(what: str, condition: Callable[[], bool], *, timeout_s: float, children: list[Child]) -> None:
    """Poll `condition` until it holds.

    Raises:
        BedError: it does not hold within `timeout_s`, or a child has ended meanwhile; with the end of that child's log.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        for child in children:
            if child.process.poll() is not None:
                raise BedError(
                    f"{child.name} ended with {child.process.returncode} while waiting for {what}:\n{child.tail()}"
                )
        if time.monotonic() > deadline:
            raise BedError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    """Free ports of 127.0.0.1, below the ephemeral range: no outgoing connection takes one before it is bound."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            candidate = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                candidate.bind(("127.0.0.1", random.randrange(15000, 32000)))
            except OSError:
                candidate.close()
            else:
                held.append(candidate)
        return [candidate.getsockname()[1] for candidate in held]
    finally:
        for candidate in held:
            candidate.close()


def ended(pid: int) -> bool:
    """Whether no process `pid` is left (a zombie has ended)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rsplit(")", 1)[1].split()[0] in "ZX"
