from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.collectors.snapshot_host import SNAPSHOT_HOST
from freezeframe.agentd.host import Clock, Host, system
from freezeframe.agentd.jobs import Target
from freezeframe.judge.model import Filesystem, Pressure, Throttle
from freezeframe.judge.model import Host as Record
from tests.support.proc_tree import ProcTree
from tests.support.report import run

PRESSURE = "some avg10=1.50 avg60=2.25 avg300=0.00 total={}\nfull avg10=0.50 avg60=0.25 avg300=0.00 total=1\n"
MOUNTS = (
    "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n"
    "23 22 0:30 / /dev/shm rw - tmpfs tmpfs rw\n"
    "24 22 0:31 / /var/log rw - nfs4 server:/log rw\n"
)


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files = {
        "proc/loadavg": "1.50 2.25 3.00 2/100 4711\n",
        "proc/uptime": "1000.50 2000.00\n",
        "proc/meminfo": "MemTotal:  1000 kB\nMemAvailable:  400 kB\nSwapTotal: 100 kB\nSwapFree: 60 kB\n",
        "proc/vmstat": "nr_free_pages 1\noom_kill 3\n",
        "proc/pressure/cpu": PRESSURE.format(1000),
        "proc/self/mountinfo": MOUNTS,
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\n",
        "etc/os-release": 'NAME=x\nPRETTY_NAME="Debian GNU/Linux 12"\n',
        "sys/kernel/security/lockdown": "none [integrity] confidentiality\n",
        "dev/shm/x": "",
    }
    for path, text in files.items():
        write(tmp_path, path, text)
    return tmp_path


class Slept:
    """A clock whose sleep lets the world change."""

    def __init__(self, change: object) -> None:
        self.now = 100.0
        self.change = change

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.change()

    def host(self, root: Path) -> Host:
        return Host(root=root, clock=Clock(monotonic=lambda: self.now, sleep=self.sleep))


def test_one_look(root: Path) -> None:
    record = run(SNAPSHOT_HOST, host=Host(root=root)).snapshot().host
    assert record is not None
    uname = os.uname()
    assert record.clock in {"synchronised", "unsynchronised"}
    assert [(each.mount, each.purpose) for each in record.filesystems] == [
        ("/", "root file system, temporary files"),
        ("/dev/shm", "shared memory"),
    ]
    assert all(each.size_bytes > 0 for each in record.filesystems)
    assert replace(record, filesystems=(), clock="") == Record(
        kernel=uname.release,
        architecture=uname.machine,
        cpus=os.sysconf("SC_NPROCESSORS_ONLN"),
        distribution="Debian GNU/Linux 12",
        versions=(("nvidia", "550.54.15"),),
        lockdown="integrity",
        load=(1.5, 2.25, 3.0),
        uptime_ms=1_000_500.0,
        memory_total_bytes=1_024_000.0,
        memory_available_bytes=409_600.0,
        swap_used_bytes=40_960.0,
        oom_kills=3.0,
        pressure=(Pressure(resource="cpu", some_avg10=1.5, some_avg60=2.25, full_avg10=0.5, full_avg60=0.25),),
    )


def test_what_moves_between_the_looks(root: Path) -> None:
    def change() -> None:
        write(root, "proc/pressure/cpu", PRESSURE.format(1000 + 250_000))
        write(root, "proc/vmstat", "oom_kill 5\n")

    record = run(SNAPSHOT_HOST, host=Slept(change).host(root), window_ms=1000.0).snapshot().host
    assert record is not None
    assert (record.pressure[0].some_window, record.oom_kills, record.oom_kills_delta) == (25.0, 5.0, 2.0)


def test_cgroups_of_version_2(root: Path) -> None:
    group = "sys/fs/cgroup/kube/pod/main"

    def usage(periods: int, throttled: int, microseconds: int) -> None:
        write(root, f"{group}/../cpu.stat", "nr_periods 9\nnr_throttled 9\nthrottled_usec 9\n")
        text = f"usage_usec 1\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {microseconds}\n"
        write(root, f"{group}/cpu.stat", text)
        write(root, f"{group}/memory.pressure", PRESSURE.format(microseconds))

    tree = ProcTree(root)
    for pid in (10, 11):
        tree.add(pid, cgroup=b"0::/kube/pod/main\n")
    write(root, f"{group}/cpu.max", "150000 100000\n")
    usage(100, 10, 1000)
    write(root, "sys/fs/cgroup/kube/pod/cpu.max", "max 100000\n")
    host = Slept(lambda: usage(110, 18, 501_000)).host(root)
    targets = [Target(pid=pid, start_ticks=1000) for pid in (11, 10, 12)]
    record = run(SNAPSHOT_HOST, targets, host=host, window_ms=1000.0).snapshot().host
    assert record is not None
    assert record.throttles == (
        Throttle(
            cgroup="/kube/pod/main",
            pids=(10, 11),
            quota_cpus=1.5,
            periods_delta=10.0,
            throttled_periods_delta=8.0,
            throttled_ms_delta=500.0,
        ),
    )
    assert [(each.cgroup, each.resource, each.some_window) for each in record.pressure] == [
        ("", "cpu", 0.0),
        ("/kube/pod/main", "memory", 50.0),
    ]


def test_cgroups_of_version_1_with_a_limit_above(root: Path) -> None:
    ProcTree(root).add(10, cgroup=b"4:cpu,cpuacct:/pod/main\n0::/\n")
    for path, quota in (("pod/main", "-1"), ("pod", "50000")):
        write(root, f"sys/fs/cgroup/cpu/{path}/cpu.cfs_quota_us", f"{quota}\n")
        write(root, f"sys/fs/cgroup/cpu/{path}/cpu.cfs_period_us", "100000\n")
        write(root, f"sys/fs/cgroup/cpu/{path}/cpu.stat", "nr_periods 1\nnr_throttled 1\nthrottled_time 2000000\n")
    record = run(SNAPSHOT_HOST, [Target(pid=10, start_ticks=1000)], host=Host(root=root)).snapshot().host
    assert record is not None
    assert record.throttles == (Throttle(cgroup="/pod", pids=(10,), quota_cpus=0.5),)


def test_a_host_that_shows_nothing(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    record = run(SNAPSHOT_HOST, host=Host(root=tmp_path)).snapshot().host
    assert record is not None
    assert (record.load, record.pressure, record.oom_kills, record.filesystems) == ((), (), None, ())


def test_this_host() -> None:
    record = run(SNAPSHOT_HOST, window_ms=20.0).snapshot().host
    assert record is not None
    assert len(record.load) == 3
    assert record.memory_total_bytes > record.memory_available_bytes > 0
    assert "/" in [each.mount for each in record.filesystems] or record.filesystems == ()
    assert all(isinstance(each, Filesystem) for each in record.filesystems)
    assert record.oom_kills_delta == 0


def test_mounts_with_odd_names() -> None:
    data = b"1 0 0:1 / /a\\040b rw - ext4 x rw\n2 0 0:2 / /\xff rw shared:1 master:2 - tmpfs x rw\nnonsense\n - \n"
    assert system.parse_mounts(data) == {"/a b": "ext4", "/\udcff": "tmpfs"}


@given(st.binary(max_size=200))
def test_nothing_that_a_file_holds_breaks_a_parser(data: bytes) -> None:
    system.parse_mounts(data)
    system.parse_pressure(data)


def test_the_state_directory_is_the_configured_one(root: Path) -> None:
    write(root, "proc/self/mountinfo", MOUNTS + "25 22 0:32 / /data rw - tmpfs tmpfs rw\n")
    (root / "data/freezeframe").mkdir(parents=True)
    found = system.read_filesystems(Host(root=root, state_dir="/data/freezeframe"))
    assert ("/data", "state directory") in [(each.mount, each.purpose) for each in found]
    assert "state directory" not in next(each.purpose for each in found if each.mount == "/")
