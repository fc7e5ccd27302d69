"""A process whose memory lock cannot be taken: what is never read of it, and what answers all the same."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from freezeframe.agentd.collectors.contract import Collector
from freezeframe.agentd.collectors.find_processes import FIND_PROCESSES
from freezeframe.agentd.collectors.read_command_lines import READ_COMMAND_LINES
from freezeframe.agentd.collectors.snapshot_locks import SNAPSHOT_LOCKS
from freezeframe.agentd.collectors.snapshot_native_stacks import SNAPSHOT_NATIVE_STACKS
from freezeframe.agentd.collectors.snapshot_processes import SNAPSHOT_PROCESSES
from freezeframe.agentd.collectors.snapshot_python_stacks import SNAPSHOT_PYTHON_STACKS
from freezeframe.judge.model import Process
from tests.support.children import python
from tests.support.report import run, target
from tests.support.stall import stalled_process, state

pytestmark = pytest.mark.needs("root", "fuse")


def test_its_memory_is_left_alone_and_the_rest_is_read(tmp_path: Path) -> None:
    with python("import time; print('ready', flush=True); time.sleep(600)") as other, stalled_process(tmp_path) as pid:
        begin = time.monotonic()
        kept = run(SNAPSHOT_PROCESSES, [target(pid)])
        (process,) = kept.snapshot().processes
        assert (process.state, process.threads[0].state, process.threads[0].syscall) == ("D", "D", "mmap")
        assert "mmap" in process.threads[0].wchan
        assert (kept.misses, kept.finished) == ({}, [pid])
        assert pid in [each.pid for each in run(FIND_PROCESSES).snapshot().processes]
        known = {"role": Process.Role.CLIENT, "python": "3.11"}
        for collector in (READ_COMMAND_LINES, SNAPSHOT_PYTHON_STACKS):
            kept = run(collector, [target(pid, **known), target(other.pid, **known)])
            assert kept.misses == {pid: f"thread {pid} waits for the memory lock in mmap: left alone"}
            assert kept.finished == [other.pid]
            assert [each.memory_blocked for each in kept.snapshot().processes if each.pid == pid] == [True]
        # Well before the watchdog: nothing above has waited for the lock.
        assert state(pid) == "D"
        assert time.monotonic() - begin < 7


@pytest.mark.needs("bpf")
@pytest.mark.parametrize("collector", [SNAPSHOT_NATIVE_STACKS, SNAPSHOT_LOCKS], ids=lambda each: each.name)
def test_native_stacks_and_locks_leave_it_alone(collector: Collector, tmp_path: Path) -> None:
    with python("import time; print('ready', flush=True); time.sleep(600)") as other, stalled_process(tmp_path) as pid:
        begin = time.monotonic()
        kept = run(collector, [target(pid), target(other.pid)])
        assert kept.misses == {pid: f"thread {pid} waits for the memory lock in mmap: left alone"}
        assert kept.finished == [other.pid]
        assert state(pid) == "D"
        assert time.monotonic() - begin < 7
