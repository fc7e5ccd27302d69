"""Finding the interpreter of a process, and finding it again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from freezeframe.agentd.host.cpython import interpreter
from freezeframe.agentd.host.cpython.interpreter import attach
from freezeframe.agentd.host.target_memory import TargetMemory
from tests.support.children import child
from tests.support.pythons import Python, each_python

pytestmark = pytest.mark.needs("root")

MACHINE = os.uname().machine
# On SIGUSR1 it becomes another program of the same name: elsewhere in memory, and with asyncio.
PROGRAM = """
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
if sys.argv[1:]:
    import asyncio
print("ready", flush=True)
signal.sigwait({signal.SIGUSR1})
os.execv(sys.executable, [sys.executable, __file__, "again"])
"""


@each_python()
def test_what_was_found_before_is_checked_again(
    python: Python, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with child(python.path, str(program)) as process:
        directory = f"/proc/{process.pid}"
        first = attach(directory, TargetMemory(process.pid), MACHINE)
        assert "asyncio.tasks" not in first.modules

        with monkeypatch.context() as patched:
            patched.delattr(interpreter, "parse_maps")
            again = attach(directory, TargetMemory(process.pid), MACHINE, first)
        assert (again.version, again.address, again.modules) == (first.version, first.address, first.modules)
        assert again.memory is not first.memory

        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == b"ready\n"
        assert "asyncio.tasks" in attach(directory, TargetMemory(process.pid), MACHINE, again).modules
