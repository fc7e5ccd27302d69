from __future__ import annotations

import time
from pathlib import Path

from freezeframe.agentd.collectors.find_processes import FIND_PROCESSES, python_version
from freezeframe.agentd.host import Host
from freezeframe.judge.model import Process
from tests.support.proc_tree import KERNEL_THREAD, ProcTree
from tests.support.report import run


def test_one_process_is_read_as_it_is(tmp_path: Path) -> None:
    ProcTree(tmp_path).add(
        4711,
        comm=b"sglang::schedul",
        parent=4700,
        start=5000,
        exe="/usr/bin/python3.11",
        cgroup=b"0::/system.slice/sglang.service\n",
        namespace_pids=(4711, 7),
        tids=(4711, 4712),
    )
    kept = run(FIND_PROCESSES, host=Host(root=tmp_path))
    (process,) = kept.snapshot().processes
    assert process.age_ms > 0
    assert process == Process(
        pid=4711,
        parent_pid=4700,
        start_ticks=5000,
        age_ms=process.age_ms,
        comm="sglang::schedul",
        exe="/usr/bin/python3.11",
        state="S",
        uid=1000,
        container_pid=7,
        cpu_ms=2000.0,
        rss_bytes=25 * 4096,
        thread_count=2,
        cgroup="/system.slice/sglang.service",
        unit="sglang.service",
        netns=4026531840,
        python="3.11",
        runtime="python",
    )
    assert (kept.misses, kept.partials) == ({}, [])


def test_threads_of_the_kernel_are_left_out_and_broken_files_are_told(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path)
    tree.add(2, comm=b"kthreadd", flags=KERNEL_THREAD, exe=None)
    tree.add(10)
    (tree.add(11) / "stat").write_bytes(b"nonsense")
    (tree.add(12) / "stat").unlink()
    kept = run(FIND_PROCESSES, host=Host(root=tmp_path))
    assert [process.pid for process in kept.snapshot().processes] == [10]
    assert list(kept.misses) == [11]


def test_thousands_of_processes_come_in_batches(tmp_path: Path) -> None:
    ProcTree(tmp_path).add_many(range(1000, 4000))
    begin = time.process_time()
    kept = run(FIND_PROCESSES, host=Host(root=tmp_path))
    assert len(kept.snapshot().processes) == 3000
    assert kept.parts == 12
    assert time.process_time() - begin < 3.0


def test_python_is_told_by_the_resolved_interpreter() -> None:
    assert python_version("/root/.pyenv/versions/3.11.7/bin/python3.11") == "3.11"
    assert python_version("/opt/conda/bin/python3.13t") == "3.13"
    assert python_version("/usr/bin/python3.10 (deleted)") == "3.10"
    assert python_version("/usr/bin/python2.7") == ""
    assert python_version("/usr/bin/python3.11-config") == ""
    assert python_version("") == ""
