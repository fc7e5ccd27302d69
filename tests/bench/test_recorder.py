"""What the recorder costs those it watches, and what it needs itself. Each pair of numbers is of interleaved runs."""

from __future__ import annotations

import contextlib
import os
import select
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench.overhead import armed, spend
from tests.bench.results import record
from tests.kernel.test_recorder import recorder_of, times_armed
from tests.support.children import PROGRAMS
from tests.support.daemon import running_daemon

pytestmark = [pytest.mark.needs("root", "kernel", "e2e", "bench", "gcc"), pytest.mark.timeout(900)]


def test_the_cost_of_one_call(tmp_path: Path) -> None:
    program = tmp_path / "call_cost"
    subprocess.run(["gcc", "-O2", "-w", "-o", program, PROGRAMS / "call_cost.c"], check=True)
    kinds = {
        "other": ("one other system call, process not watched", "150 ns"),
        "watched-other": ("one other system call, process watched", "150 ns"),
        "body": ("one read or write of a body", "500 ns"),
        "exchange": ("one read or write that begins a request or an answer", "500 ns"),
    }
    costs: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(5):
        before = {kind: call_ns(program, kind) for kind in kinds}
        with armed(tmp_path):
            with_it = {kind: call_ns(program, kind) for kind in kinds}
        for kind in kinds:
            costs[kind].append(with_it[kind] - min(before[kind], call_ns(program, kind)))
    for kind, (what, bar) in kinds.items():
        how = "best of 25 rounds of 20,000 calls at real-time priority, with less without; median of five"
        record(f"recorder's cost of {what}", f"{statistics.median(costs[kind]):.0f} ns", f"<= {bar}", how)


def call_ns(program: Path, kind: str) -> float:
    """Real-time priority: other processes of the machine do not count."""
    command = ["chrt", "--fifo", "10", str(program), kind, "25"]
    done = subprocess.run(command, input="\n", capture_output=True, text=True, check=True)
    return float(done.stdout.split()[1])


OWING = """
import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
pairs = []
with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
    for number in range(5_000):
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        client.send(b"POST /v1/x HTTP/1.1\\r\\nX-Request-Id: id-%d\\r\\nContent-Length: 0\\r\\n\\r\\n" % number)
        server.recv(4096)
        pairs.append((client, server))
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_dump_of_ten_thousand_connections(tmp_path: Path) -> None:
    with armed(tmp_path) as ledger, contextlib.ExitStack() as stack:
        command = [sys.executable, "-c", OWING]
        process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        stack.callback(process.kill)
        while not select.select([process.stdout], [], [], 0.1)[0]:
            ledger.sweep()
        assert process.stdout.readline() == b"ready\n"
        spend(1.0, ledger)
        cpu, wall = [], []
        for _ in range(9):
            begin, began = time.process_time(), time.perf_counter()
            flights = [each for each in ledger.in_flight() if each.pid == process.pid]
            wall.append((time.perf_counter() - began) * 1000)
            cpu.append((time.process_time() - begin) * 1000)
            assert len(flights) == 10_000
    record(
        "dump of 10,000 connections, a request in flight on each",
        f"{statistics.median(wall):.0f} ms, {statistics.median(cpu):.0f} ms of CPU", "<= 150 ms", "median of nine",
    )  # fmt: skip


def test_the_idle_agent_on_a_host_with_two_thousand_processes(tmp_path: Path) -> None:
    del tmp_path
    crowd = subprocess.Popen(
        [sys.executable, "-c",
         ("import os, signal\nfor _ in range(2000):\n    if os.fork() == 0:\n        signal.pause()\n"
          "print('ready', flush=True)\nsignal.pause()")],
        stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        assert crowd.stdout.readline() == b"ready\n"
        with running_daemon() as agent:
            while not times_armed(agent):
                time.sleep(0.1)
            time.sleep(20)
            pids = [agent.pid, *map(int, Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split())]
            # Workers that come and go are in their parent's account once they are reaped.
            before, begin = sum(map(family_cpu_s, pids)), time.monotonic()
            time.sleep(60)
            cpu = (sum(map(family_cpu_s, pids)) - before) / (time.monotonic() - begin)
            kib = sum(pss_kib(pid) for pid in pids)
            recorder_kib = pss_kib(recorder_of(agent))
            locked = locked_bytes(recorder_of(agent))
    finally:
        os.killpg(crowd.pid, 9)
        crowd.wait(30)
        crowd.stdout.close()
    record("idle agent, 2,000 processes, CPU", f"{cpu:.2%} of a core", "<= 1 %", "60 s, recorder armed")
    record(
        "idle agent, 2,000 processes, PSS and locked memory", f"{kib / 1024 + locked / 2**20:.0f} MB", "<= 300 MB",
        f"PSS {kib / 1024:.0f} MB, of the recorder {recorder_kib / 1024:.0f} MB; locked {locked / 2**20:.0f} MB",
    )  # fmt: skip


def family_cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def pss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def locked_bytes(pid: int) -> int:
    total = 0
    for name in os.listdir(f"/proc/{pid}/fdinfo"):
        for line in Path(f"/proc/{pid}/fdinfo/{name}").read_text().splitlines():
            if line.startswith("memlock:"):
                total += int(line.split()[1])
    return total


def test_the_compiler_s_memory_is_not_the_recorder_s(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    code = (
        "import resource, sys\n"
        "from freezeframe.agentd.bpf import loader, programs\n"
        "loader.load(programs.LEDGER, sys.argv[1])\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    compiler, holder = (int(each) / 1024 for each in done.stdout.split())
    record(
        "resident memory while the programs are compiled", f"{compiler:.0f} MB", "told",
        f"of the compiling process, which ends; who gets the programs had {holder:.0f} MB at most",
    )  # fmt: skip
