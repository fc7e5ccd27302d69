"""`snap` of 500 hosts at once, a megabyte each, with and without 50 dead ones: seconds and memory of the client.

Then what is done with the file: each command by itself.

The hosts are sockets of 16 processes on this machine, so what the agents of a fleet do by themselves is done here by
the same cores. The client runs in a network of its own, from which nothing answers.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from freezeframe.agentd.roles import Role
from freezeframe.client.transports.tls import CONNECT_S
from freezeframe.judge import file
from freezeframe.v1 import file_pb2, verdict_pb2
from tests.bench.results import record
from tests.support.certificates import authority
from tests.support.many_hosts import FRONTS, SCHEDULER, STUCK, Cast

pytestmark = [pytest.mark.needs("root", "bench"), pytest.mark.timeout(3600)]

HOSTS, PROCESSES = int(os.environ.get("FREEZEFRAME_BENCH_HOSTS", "500")), 16
REFUSED, SILENT, FAR = 17, 17, 16
_ALONE = (
    "ip link set lo up && ip link add nowhere type veth peer name beyond && ip link set beyond up && "
    'ip link set nowhere up arp off && ip address add 198.51.100.200/24 dev nowhere && exec "$@"'
)
# Its child's peak of resident memory, KiB, and CPU seconds: a child of this large process would begin with its own.
_METER = """
import os, sys
pid = os.fork()
if not pid:
    os.execv(sys.argv[2], sys.argv[2:])
_, status, used = os.wait4(pid, 0)
with open(sys.argv[1], "w") as told:
    print(used.ru_maxrss, used.ru_utime + used.ru_stime, file=told)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One snap."""

    manifest: file_pb2.Manifest
    took_s: float
    cpu_s: float
    peak_mb: float
    spooled_mb: float
    lines: list[str]


@contextlib.contextmanager
def agents(folder: Path, cast: Cast) -> Iterator[None]:
    command = [sys.executable, "-m", "tests.support.many_agents", str(folder), str(cast.hosts)]
    with contextlib.ExitStack() as stack:
        served = []
        for first in range(PROCESSES):
            process = subprocess.Popen(
                [*command, str(first), str(PROCESSES)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            stack.callback(process.wait)
            assert process.stdin is not None
            stack.callback(process.stdin.close)
            served.append(process)
        for process in served:
            assert process.stdout is not None
            with process.stdout:
                assert process.stdout.readline() == b"ready\n"
        yield


@contextlib.contextmanager
def dead(folder: Path) -> Iterator[list[str]]:
    """Names of hosts whose agent has ended, or takes connections and is silent, or to which no packet comes."""
    with contextlib.ExitStack() as stack:
        for number in range(REFUSED):
            gone = stack.enter_context(socket.socket(socket.AF_UNIX))
            gone.bind(f"{folder}/refused-{number:02d}.sock")
        for number in range(SILENT):
            silent = stack.enter_context(socket.socket(socket.AF_UNIX))
            silent.bind(f"{folder}/silent-{number:02d}.sock")
            silent.listen()
        yield [f"refused-[00-{REFUSED - 1:02d}]", f"silent-[00-{SILENT - 1:02d}]", f"198.51.100.[1-{FAR}]"]


def configure(home: Path, folder: Path, cast: Cast) -> None:
    names = [cast.name(number) for number in range(cast.hosts)]
    certificates = authority(home / "authority").client(Role.CAPTURE)
    lines = ["[groups]", f"all = {names!r}".replace("'", '"'), "[tls]"]
    lines += [f'{key} = "{certificates / name}"' for key, name in
              (("certificate", "client.crt"), ("key", "client.key"), ("ca", "ca.crt"))]  # fmt: skip
    for name in (*names, f"refused-[00-{REFUSED - 1:02d}]", f"silent-[00-{SILENT - 1:02d}]"):
        lines += [f'[hosts."{name}"]', f'address = "unix:{folder}/{{host}}.sock"']
    lines += [f'[hosts."198.51.100.[1-{FAR}]"]', 'address = "tls://{host}:7443"']
    (home / "freezeframe").mkdir()
    (home / "freezeframe" / "config.toml").write_text("\n".join(lines))


def snap(home: Path, *hosts: str) -> Run:
    spool = home / "spool"
    spool.mkdir(exist_ok=True)
    out = home / f"{len(hosts)}.ffz"
    meter = [sys.executable, "-S", "-c", _METER, str(home / "meter"), sys.executable, "-m", "freezeframe.client"]
    command = ["unshare", "--net", "sh", "-c", _ALONE, "sh", *meter, "snap", "--group", "all", *hosts, "-o", str(out)]
    environ = {**os.environ, "XDG_CONFIG_HOME": str(home), "TMPDIR": str(spool)}
    most = 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.1):
            most = max(most, sum(size(path) for path in spool.rglob("*")))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        begin = time.monotonic()
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=1200)
        took_s = time.monotonic() - begin
    finally:
        ended.set()
        watcher.join()
    assert done.returncode == (4 if hosts else 0), done.stderr[-3000:]
    assert list(spool.iterdir()) == []
    peak_kb, cpu_s = (home / "meter").read_text().split()
    with out.open("rb") as source:
        head = source.read(file.HEAD_BYTES)
        head += source.read(file.manifest_end(head) - len(head))
    return Run(
        manifest=file.read_manifest(head), took_s=took_s, cpu_s=float(cpu_s), peak_mb=float(peak_kb) / 1024,
        spooled_mb=most / 1e6, lines=done.stderr.splitlines(),
    )  # fmt: skip


# What is done with a file of many hosts, and what it may take of memory: MB.
AFTERWARDS = (
    ("show FILE", 700.0),
    ("show FILE requests", 700.0),
    ("show FILE native", 700.0),
    ("show FILE --why", 700.0),
    ("where chatcmpl-1 FILE", 700.0),
    ("export FILE --to parquet -o tables", 700.0),
    ("export FILE --to otlp -o logs", 700.0),
)


def use(home: Path, what: str, path: Path) -> tuple[float, float]:
    """Peak of resident memory, MB, and seconds of one command; what it says goes nowhere."""
    arguments = [str(path) if word == "FILE" else word for word in what.split()]
    meter = [sys.executable, "-S", "-c", _METER, str(home / "meter"), sys.executable, "-m", "freezeframe.client"]
    begin = time.monotonic()
    subprocess.run([*meter, *arguments], cwd=home, stdout=subprocess.DEVNULL, check=True, timeout=3000)
    took_s = time.monotonic() - begin
    peak_kb, _ = (home / "meter").read_text().split()
    return float(peak_kb) / 1024, took_s


def size(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def test_of_500_hosts(tmp_path: Path) -> None:
    cast = Cast(HOSTS)
    with tempfile.TemporaryDirectory(prefix="ff-") as sockets:
        folder = Path(sockets)
        configure(tmp_path, folder, cast)
        with agents(folder, cast), dead(folder) as gone:
            without = snap(tmp_path)
            beside = snap(tmp_path, *gone)
    used = {what: use(tmp_path, what, tmp_path / "0.ffz") for what, _ in AFTERWARDS}
    how = f"{PROCESSES} processes serve all, {len(cast.file(0)) / 1e6:.1f} MB each, DECODE_STALLED on one of them"
    record(f"snap of {HOSTS} hosts", f"{without.took_s:.1f} s, {without.cpu_s:.1f} s of CPU", "<= 60 s", how)
    record(
        f"snap of {HOSTS} hosts, client's peak of resident memory", f"{max(without.peak_mb, beside.peak_mb):.0f} MB",
        "<= 500 MB", f"{without.spooled_mb:.0f} MB spooled on disk",
    )  # fmt: skip
    more_s = beside.took_s - without.took_s
    record(
        f"50 dead hosts beside {HOSTS}", f"{more_s:+.1f} s", f"<= {CONNECT_S:.0f} s, the connect timeout",
        f"{REFUSED} refuse, {SILENT} are silent, to {FAR} no packet comes",
    )  # fmt: skip
    for what, most_mb in AFTERWARDS:
        peak_mb, took_s = used[what]
        record(f"{what}, of {HOSTS} hosts", f"{peak_mb:.0f} MB", f"<= {most_mb:.0f} MB", f"{took_s:.0f} s")
    for run, missing in ((without, 0), (beside, REFUSED + SILENT + FAR)):
        verdict = run.manifest.verdict
        assert verdict.code == verdict_pb2.Verdict.Code.DECODE_STALLED
        assert (list(verdict.holder_pids), list(verdict.holder_hosts)) == ([SCHEDULER], [cast.name(cast.culprit)])
        assert verdict.explains == STUCK * FRONTS * FRONTS
        assert [part.meta.host for part in run.manifest.hosts] == [cast.name(n) for n in range(HOSTS)]
        assert len(run.manifest.missing) == missing
        assert sum("  captured  " in line for line in run.lines) == HOSTS
        assert sum("  nothing came  " in line for line in run.lines) == missing
    assert without.spooled_mb >= 0.9 * HOSTS
    assert max(without.took_s, beside.took_s) <= 60.0
    assert max(without.peak_mb, beside.peak_mb) <= 500.0
    assert more_s <= CONNECT_S
    assert {what for what, most_mb in AFTERWARDS if used[what][0] > most_mb} == set()
