"""Logs where hosts keep them: the journal, container runtimes' files, rotated files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from freezeframe.agentd.collectors.read_logs import collect
from freezeframe.agentd.host import Clock, Host
from freezeframe.agentd.jobs import Caps, Job, Target
from freezeframe.judge.model import Process
from tests.bed.bed import Bed
from tests.support.cgroup import in_cgroup
from tests.support.report import until
from tests.support.reports import KeptReport
from tests.support.router_log import Written, cri, docker, plain, router_log, write_journal

pytestmark = pytest.mark.needs("root")

CONTAINER = "4f" * 32
POD = "3b6f5e0a-1111-4222-8333-9d4c5b6a7f80"
UNIT = "freezeframe-test-router.service"
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
NOW = float(int(time.time())) + 0.75
# The router began long before its first line; what is asked is asked at NOW.
CLOCK = Clock(wall=lambda: NOW, boottime=lambda: 1e9)
CAPS = Caps()
LINES, TRUTH = router_log(NOW, answered=900, waiting=30)


@contextmanager
def program(stderr: int = subprocess.PIPE) -> Iterator[int]:
    """A process whose output somebody else collects."""
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr,
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdout.readline() == b"up\n"
    try:
        yield child.pid
    finally:
        child.communicate()


@contextmanager
def service(*, role: Process.Role = Process.Role.ROUTER, unit: str = UNIT) -> Iterator[Target]:
    with program() as pid, in_cgroup(f"system.slice/{unit}", pid):
        yield Target(pid=pid, start_ticks=1, role=role)


@contextmanager
def contained(cgroup: str) -> Iterator[Target]:
    with program() as pid, in_cgroup(cgroup, pid):
        yield Target(pid=pid, start_ticks=1, role=Process.Role.ROUTER)


KUBERNETES = f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A host's root with this machine's /proc."""
    (tmp_path / "proc").symlink_to("/proc")
    return tmp_path


def read(root: Path, *targets: Target, caps: Caps = CAPS, clock: Clock = CLOCK) -> KeptReport:
    report = KeptReport()
    job = Job(job_id=1, collector="read_logs", targets=targets, caps=caps, deadline_ms=60_000.0)
    collect(job, Host(root=root, clock=clock), report)
    return report


def waiting(report: KeptReport) -> dict[str, float]:
    return {each.request_id: each.age_ms for each in report.snapshot().log_requests if not each.finished}


def assert_truth(report: KeptReport, truth: dict[str, float] = TRUTH, *, within_ms: float = 0.01) -> None:
    """The same requests, with ages as exact as the form's time."""
    found = waiting(report)
    assert found.keys() == truth.keys()
    assert max(abs(found[each] - truth[each]) for each in truth) <= within_ms


@pytest.mark.needs("journal")
def test_the_journal_of_a_unit(root: Path) -> None:
    with service() as router:
        other = [Written(moment=NOW - 1, text=LINES[0].text.replace(b"000000", b"999999"))]
        write_journal(root, other, boot=BOOT, name="other", _SYSTEMD_UNIT="other.service", _PID="1")
        write_journal(root, other, boot="0" * 31 + "1", name="earlier", _SYSTEMD_UNIT=UNIT, _PID=str(router.pid))
        write_journal(root, LINES, boot=BOOT, _SYSTEMD_UNIT=UNIT, _PID=str(router.pid))
        report = read(root, router)
    assert_truth(report)
    (source,) = report.snapshot().log_sources
    assert (source.pid, source.kind, source.name, source.error) == (router.pid, "journal", UNIT, "")
    assert source.lines == len(LINES)
    assert source.covers_ms == pytest.approx(1000.0 * (NOW - LINES[0].moment), abs=0.01)


@pytest.mark.needs("journal")
def test_a_unit_with_two_programs_tells_them_apart_by_pid(root: Path) -> None:
    with service() as router, program() as pid, in_cgroup(f"system.slice/{UNIT}/engine", pid):
        engine = Target(pid=pid, start_ticks=1, role=Process.Role.ENGINE_HTTP)
        write_journal(root, LINES, boot=BOOT, _SYSTEMD_UNIT=UNIT, _PID=str(router.pid))
        panic = [Written(moment=NOW - 2.5, text=b"thread 'main' panicked at src/x.rs:1")]
        write_journal(root, panic, boot=BOOT, name="engine", _SYSTEMD_UNIT=UNIT, _PID=str(pid))
        report = read(root, router, engine)
    assert_truth(report)
    assert {each.pid for each in report.snapshot().log_requests} == {router.pid}
    (finding,) = report.snapshot().log_findings
    assert (finding.pid, finding.pattern, finding.count) == (pid, "panicked", 1)
    assert finding.last_age_ms == pytest.approx(2500.0, abs=0.01)


@pytest.mark.needs("journal")
def test_a_large_journal_stays_within_the_caps(root: Path) -> None:
    lines, _ = router_log(NOW, answered=30_000, waiting=30)
    with service() as router:
        write_journal(root, lines, boot=BOOT, _SYSTEMD_UNIT=UNIT, _PID=str(router.pid))
        begin = time.monotonic()
        report = read(root, router, caps=Caps(log_bytes=200_000))
        assert time.monotonic() - begin < 10
    (source,) = report.snapshot().log_sources
    assert source.error == "not read: older lines"
    assert 190_000 < source.bytes_read <= 200_000
    oldest = lines[-source.lines].moment
    assert source.covers_ms == pytest.approx(1000.0 * (NOW - oldest), abs=0.01)


def test_a_unit_without_a_journal_says_that_its_lines_are_elsewhere(root: Path) -> None:
    with service() as router:
        report = read(root, router)
    (source,) = report.snapshot().log_sources
    assert (source.kind, source.name, source.error) == ("journal", UNIT, "there is no journal here")


def test_what_a_service_writes_to_a_terminal_is_in_no_journal(root: Path) -> None:
    outer, inner = os.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE, stdout=inner, stderr=inner,
    )  # fmt: skip
    assert os.read(outer, 2) == b"up"
    with in_cgroup(f"system.slice/{UNIT}", child.pid):
        report = read(root, Target(pid=child.pid, start_ticks=1, role=Process.Role.ROUTER))
    child.communicate()
    os.close(inner)
    os.close(outer)
    assert {(each.kind, each.error) for each in report.snapshot().log_sources} == {
        ("file", "a terminal or device: whoever reads it has the lines")
    }


def docker_files(root: Path, data_root: str = "var/lib/docker") -> Path:
    folder = root / data_root / "containers" / CONTAINER
    folder.mkdir(parents=True)
    return folder / f"{CONTAINER}-json.log"


@pytest.mark.parametrize("cgroup", [f"docker/{CONTAINER}", f"system.slice/docker-{CONTAINER}.scope"])
def test_docker_with_rotated_files(root: Path, cgroup: str) -> None:
    log = docker_files(root)
    for name, part in ((f"{log.name}.2", LINES[:500]), (f"{log.name}.1", LINES[500:1200]), (log.name, LINES[1200:])):
        (log.parent / name).write_bytes(docker(part))
        os.utime(log.parent / name, (NOW, part[-1].moment))
    (log.parent / f"{log.name}.3.gz").write_bytes(b"\x1f\x8b")
    with contained(cgroup) as router:
        report = read(root, router)
    assert_truth(report)
    sources = report.snapshot().log_sources
    assert [(each.kind, Path(each.name).name, each.lines) for each in sources] == [
        ("docker", log.name, len(LINES) - 1200),
        ("docker", f"{log.name}.1", 700),
        ("docker", f"{log.name}.2", 500),
    ]


def test_docker_with_its_data_elsewhere(root: Path) -> None:
    (root / "etc/docker").mkdir(parents=True)
    (root / "etc/docker/daemon.json").write_text(json.dumps({"data-root": "/data/docker"}))
    docker_files(root, "data/docker").write_bytes(docker(LINES))
    with contained(f"docker/{CONTAINER}") as router:
        assert_truth(read(root, router))


@pytest.mark.needs("journal")
def test_docker_that_logs_to_the_journal(root: Path) -> None:
    log = docker_files(root)
    (log.parent / "hostconfig.json").write_text(json.dumps({"LogConfig": {"Type": "journald", "Config": {}}}))
    write_journal(root, LINES, boot=BOOT, _SYSTEMD_UNIT="docker.service", _PID="1", CONTAINER_ID_FULL=CONTAINER)
    with contained(f"system.slice/docker-{CONTAINER}.scope") as router:
        report = read(root, router)
    assert_truth(report)
    assert [each.name for each in report.snapshot().log_sources] == [CONTAINER[:12]]


def kubernetes_files(root: Path) -> Path:
    """The log of a container and the links that kubelet makes."""
    folder = root / "var/log/pods" / f"serving_router-0_{POD}" / "router"
    folder.mkdir(parents=True)
    links = root / "var/log/containers"
    links.mkdir()
    (links / f"router-0_serving_router-{CONTAINER}.log").symlink_to(f"/var/log/pods/{folder.parent.name}/router/2.log")
    (folder / "2.log").touch()
    return folder / "2.log"


@pytest.mark.parametrize("piece", [16384, 100])
def test_kubernetes_with_rotated_files_and_long_lines_in_pieces(root: Path, piece: int) -> None:
    log = kubernetes_files(root)
    for name, part in (("2.log.20261130-013900", LINES[:800]), ("2.log", LINES[800:])):
        (log.parent / name).write_bytes(cri(part, piece=piece))
        os.utime(log.parent / name, (NOW, part[-1].moment))
    # Of the container before its restart.
    (log.parent / "1.log").write_bytes(cri([Written(moment=NOW - 1000, text=LINES[0].text)]))
    with contained(f"{KUBERNETES}/cri-containerd-{CONTAINER}.scope") as router:
        report = read(root, router)
    assert_truth(report)
    assert [(each.kind, Path(each.name).name) for each in report.snapshot().log_sources] == [
        ("cri", "2.log"), ("cri", "2.log.20261130-013900"),
    ]  # fmt: skip


@pytest.mark.parametrize("form", [docker, cri])
def test_a_container_log_of_a_gigabyte_stays_within_the_caps(root: Path, form: object) -> None:
    log = docker_files(root) if form is docker else kubernetes_files(root)
    with log.open("wb") as stream:
        stream.seek(1 << 30)
        stream.write(b"\n" + form(LINES))  # type: ignore[operator]
    cgroup = f"docker/{CONTAINER}" if form is docker else f"{KUBERNETES}/cri-containerd-{CONTAINER}.scope"
    with contained(cgroup) as router:
        begin = time.monotonic()
        report = read(root, router, caps=Caps(log_bytes=100_000))
        assert time.monotonic() - begin < 5
    (source,) = report.snapshot().log_sources
    assert 90_000 < source.bytes_read <= 100_000
    found = waiting(report)
    assert 0 < len(found) < len(TRUTH)
    assert max(abs(found[each] - TRUTH[each]) for each in found) <= 0.01


PODMAN = "var/lib/containers/storage/overlay-containers"


def test_podman_with_files(root: Path) -> None:
    log = root / PODMAN / CONTAINER / "userdata/ctr.log"
    log.parent.mkdir(parents=True)
    log.write_bytes(cri(LINES))
    with contained(f"machine.slice/libpod-{CONTAINER}.scope/container") as router:
        assert_truth(read(root, router))


@pytest.mark.needs("journal")
def test_podman_with_the_journal(root: Path) -> None:
    (root / PODMAN).mkdir(parents=True)
    (root / PODMAN / "containers.json").write_text(json.dumps([{"id": CONTAINER, "names": ["sglang"]}]))
    write_journal(root, LINES, boot=BOOT, _PID="1", CONTAINER_ID_FULL=CONTAINER)
    with contained(f"machine.slice/libpod-{CONTAINER}.scope/container") as router:
        assert_truth(read(root, router))


def test_a_container_of_an_unknown_runtime(root: Path) -> None:
    with contained(f"machine.slice/libpod-{CONTAINER}.scope") as router:
        report = read(root, router)
    assert {each.error for each in report.snapshot().log_sources} == {"a pipe: whoever reads it has the lines"}


@contextmanager
def writer(path: Path, mode: str = "ab") -> Iterator[Target]:
    with path.open(mode) as stream, program(stderr=stream.fileno()) as pid:
        yield Target(pid=pid, start_ticks=1, role=Process.Role.ROUTER)


def file_sources(report: KeptReport) -> list[tuple[str, int]]:
    return [(Path(each.name).name, each.lines) for each in report.snapshot().log_sources if not each.error]


@pytest.mark.parametrize(
    ("current", "older"),
    [
        ("router.log", "router.log.1"),
        ("router.log", "router.log-20261129"),
        ("smg.2026-11-30", "smg.2026-11-29"),
    ],
)
def test_a_file_that_was_copied_and_truncated(root: Path, current: str, older: str) -> None:
    log, before = root / current, root / older
    with writer(log) as router:
        log.write_bytes(plain(LINES[:1000]))
        before.write_bytes(log.read_bytes())
        os.utime(before, (NOW, LINES[999].moment))
        os.truncate(log, 0)
        with log.open("ab") as stream:
            stream.write(plain(LINES[1000:]))
        report = read(root, router)
    # A line of a file tells whole seconds.
    assert_truth(report, within_ms=1000.0)
    assert file_sources(report) == [(current, len(LINES) - 1000), (older, 1000)]


def test_a_file_that_was_renamed_and_not_opened_again_yet(root: Path) -> None:
    log = root / "router.log"
    with writer(log) as router:
        log.write_bytes(plain(LINES))
        log.rename(root / "router.log.1")
        (root / "router.log.2").write_bytes(plain(LINES[:1]).replace(b"000000", b"999999"))
        os.utime(root / "router.log.2", (NOW, LINES[0].moment))
        log.write_bytes(b"somebody else's\n")
        report = read(root, router)
    assert waiting(report).keys() == {*TRUTH, "chatcmpl-999999"}
    assert file_sources(report) == [("router.log.1", len(LINES)), ("router.log.2", 1)]


def test_a_file_truncated_under_a_writer_that_does_not_append(root: Path) -> None:
    log = root / "router.log"
    with writer(log) as router:
        with log.open("r+b") as stream:
            # What the kernel makes of a write behind the new end.
            stream.seek((1 << 30) + 77)
            stream.write(plain(LINES))
        report = read(root, router)
    assert_truth(report, within_ms=1000.0)
    (source,) = [each for each in report.snapshot().log_sources if not each.error]
    assert (source.lines, source.bytes_skipped) == (len(LINES), 0.0)


def test_files_that_only_look_like_rotated_ones_are_left_alone(root: Path) -> None:
    log = root / "router.log"
    stranger = LINES[0].text.replace(b"000000", b"999999") + b"\n"
    with writer(log) as router:
        log.write_bytes(plain(LINES))
        # Written to since the log began: another process's.
        (root / "router.log.1").write_bytes(stranger)
        os.utime(root / "router.log.1", (NOW, NOW))
        (root / "router.log.2").symlink_to(root / "elsewhere")
        (root / "elsewhere").write_bytes(stranger)
        os.utime(root / "elsewhere", (NOW, LINES[0].moment))
        (root / "router.log.3").write_bytes(stranger)
        os.utime(root / "router.log.3", (NOW, LINES[0].moment))
        os.chown(root / "router.log.3", 12345, -1)
        (root / "other.log.1").write_bytes(stranger)
        os.utime(root / "other.log.1", (NOW, LINES[0].moment))
        report = read(root, router)
    assert waiting(report).keys() == TRUTH.keys()


def test_what_an_earlier_process_left_in_flight_is_not_in_flight(root: Path) -> None:
    log = root / "router.log"
    with writer(log) as router:
        log.write_bytes(plain(LINES))
        # It began 200 s ago: a hundred ticks of a second since a boot at NOW - 201.
        report = read(root, router, clock=Clock(wall=lambda: NOW, boottime=lambda: 200.01))
    assert waiting(report).keys() == {each for each, age in TRUTH.items() if age < 201_000.0}


def test_no_time_left_is_told(root: Path) -> None:
    log = root / "router.log"
    with writer(log) as router:
        log.write_bytes(plain(LINES))
        ticking = iter(range(0, 1000, 40))
        report = read(
            root, router, clock=Clock(wall=lambda: NOW, boottime=lambda: 1e9, monotonic=lambda: next(ticking))
        )
    assert report.misses == {router.pid: "no time was left for all of its logs"}


@pytest.mark.needs("journal", "e2e")
def test_the_real_router_in_every_form_has_its_waiting_requests_with_their_ages(root: Path) -> None:
    lines: list[Written] = []
    with Bed.start(wedge="idle") as bed:
        with bed.logs["router"].open("rb") as stream, following(stream, lines):
            bed.enter("none")
            bed.wait_wedged()
            bed.enter("router-dual-leg")
            requests = bed.wait_wedged().requests
            until(lambda: all(any(each.request_id.encode() in line.text for line in lines) for each in requests))
        now = time.time()
        sent = {each.request_id: 1000.0 * (now - each.sent_at_wall) for each in requests}
    clock = Clock(wall=lambda: now, boottime=lambda: 1e9)
    assert len(sent) == 30
    docker_files(root).write_bytes(docker(lines))
    with contained(f"docker/{CONTAINER}") as router:
        found = {"docker": waiting(read(root, router, clock=clock))}
    shutil.rmtree(root / "var/lib/docker")
    kubernetes_files(root).write_bytes(cri(lines))
    with contained(f"{KUBERNETES}/cri-containerd-{CONTAINER}.scope") as router:
        found["cri"] = waiting(read(root, router, clock=clock))
    with service() as router:
        write_journal(root, lines, boot=BOOT, _SYSTEMD_UNIT=UNIT, _PID=str(router.pid))
        found["journal"] = waiting(read(root, router, clock=clock))
    log = root / "router.log"
    log.write_bytes(plain(lines))
    with writer(log) as router:
        found["file"] = waiting(read(root, router, clock=clock))
    for form, ages in found.items():
        # Those that the bed cancelled when it left the wedge before are there as well: their log has no end either.
        assert sent.keys() <= ages.keys(), form
        off = max(abs(ages[each] - sent[each]) for each in sent)
        print(f"{form}: at most {off:.1f} ms off")
        # Between the client's send and the router's line; a file's lines tell whole seconds.
        assert off < (1500.0 if form == "file" else 500.0), form


@contextmanager
def following(stream: BinaryIO, lines: list[Written]) -> Iterator[None]:
    """Take down when each line of a file comes."""
    ended = threading.Event()

    def follow() -> None:
        rest = b""
        while True:
            last = ended.is_set()
            rest += stream.read()
            *whole, rest = rest.split(b"\n")
            lines.extend(Written(moment=time.time(), text=line) for line in whole)
            if last:
                return
            ended.wait(0.002)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
