"""GPUs through a stand-in for NVIDIA's library, in real workers: eight GPUs, and every way in which one can fail."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from freezeframe.agentd.collectors.snapshot_gpus import SNAPSHOT_GPUS
from freezeframe.agentd.collectors.snapshot_host import SNAPSHOT_HOST
from freezeframe.agentd.collectors.watch_gpus import WATCH_GPUS
from freezeframe.agentd.jobs import Job
from freezeframe.agentd.workers import Workers
from freezeframe.judge.model import Gpu, Outcome
from freezeframe.judge.model.host import GpuProcess
from tests.support.children import PROGRAMS
from tests.support.launching import real_workers
from tests.support.stall import stalled_file
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs("root", "gcc")
Status = Outcome.Status
WHOLE = Gpu(
    index=0,
    uuid="GPU-00000000-0000-0000-0000-000000000000",
    name="Stub GPU",
    bus_id="00000000:00:00.0",
    utilization_percent=100.0,
    memory_utilization_percent=0.0,
    power_watts=100.0,
    power_limit_watts=700.0,
    memory_used_bytes=float(1 << 35),
    memory_total_bytes=float(1 << 36),
    sm_clock_mhz=1980.0,
    memory_clock_mhz=2619.0,
    temperature_celsius=40.0,
    throttle_reasons=("power cap", "power brake"),
    ecc_corrected=7.0,
    ecc_uncorrected=1.0,
    remapped_rows=3.0,
    remap_pending=True,
    remap_failed=False,
    nvlinks=4.0,
    nvlinks_up=3.0,
    nvlink_errors=20.0,
    pcie_generation=5.0,
    pcie_width=16.0,
    pcie_replays=2.0,
    pcie_sent_bytes_per_s=1.5e6,
    pcie_received_bytes_per_s=2.5e6,
    mig=False,
    persistence=True,
    compute_mode="exclusive process",
    processes=(GpuProcess(pid=4711, memory_bytes=float(1 << 34)), GpuProcess(pid=99)),
)


def gpu(index: int) -> Gpu:
    return replace(
        WHOLE,
        index=index,
        uuid=f"GPU-00000000-0000-0000-0000-{index:012d}",
        bus_id=f"00000000:{index:02X}:00.0",
        power_watts=pytest.approx(100.0 + index / 1000.0),
        temperature_celsius=40.0 + index,
        processes=(GpuProcess(pid=4711 + index, memory_bytes=float(1 << 34)), GpuProcess(pid=99)),
    )


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Build a stand-in; gives its folder."""

    def build(*flags: str) -> Path:
        folder = tmp_path_factory.mktemp("nvml")
        source = PROGRAMS / "stub_nvml.c"
        command = ["gcc", "-shared", "-fPIC", "-O1", "-w", "-Wl,-soname,libnvidia-ml.so.1", *flags, str(source)]
        subprocess.run([*command, "-o", str(folder / "libnvidia-ml.so.1")], check=True)
        return folder

    return build


async def look(workers: Workers, *, deadline_ms: float = 1500.0) -> tuple[dict[int, Gpu], Outcome]:
    found: dict[int, Gpu] = {}
    outcome = await workers.run(
        SNAPSHOT_GPUS,
        Job(job_id=1, collector=SNAPSHOT_GPUS.name, deadline_ms=deadline_ms),
        on_part=lambda part: found.update({each.index: each for each in part.gpus}),
        on_doing=lambda _what, _done: None,
    )
    return found, outcome


@contextlib.asynccontextmanager
async def launcher(folder: Path) -> AsyncIterator[Workers]:
    async with real_workers(str(PROGRAMS / "gpu_launcher.py"), str(folder)) as workers:
        # A launcher that is still starting would eat up the first deadline.
        job = Job(job_id=0, collector=SNAPSHOT_HOST.name, deadline_ms=30_000.0)
        await workers.run(SNAPSHOT_HOST, job, on_part=lambda _part: None, on_doing=lambda _what, _done: None)
        yield workers


async def test_eight_gpus_and_all_that_is_known_of_each(library: Callable[..., Path]) -> None:
    async with launcher(library()) as workers:
        found, outcome = await look(workers, deadline_ms=5000.0)
    assert (outcome.status, outcome.detail) == (Status.OK, "")
    assert found == {index: gpu(index) for index in range(8)}


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("nvmlDeviceGetHandleByIndex_v2@2:15", "GPU is lost (NVML 15)"),
        ("nvmlDeviceGetTemperature@2:15", "GPU is lost (NVML 15)"),
        ("nvmlDeviceGetTemperature@2:999", "temperature: Unknown Error (NVML 999)"),
        ("nvmlDeviceGetTemperature@2:hang", "asked for temperature"),
        ("nvmlDeviceGetTemperature@2:spin", "asked for temperature"),
        ("nvmlDeviceGetHandleByIndex_v2@2:dstate", "asked for handle"),
    ],
)
async def test_one_gpu_that_fails_blanks_no_other(
    library: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, fault: str, error: str
) -> None:
    monkeypatch.setenv("STUB_NVML_FAULT", fault)
    async with launcher(library()) as workers:
        begin = time.monotonic()
        found, outcome = await look(workers)
        assert time.monotonic() - begin < 1.75
        assert {index: each for index, each in found.items() if index != 2} == {
            index: gpu(index) for index in range(8) if index != 2
        }
        assert found[2].error.endswith(error) or error in found[2].error
        assert outcome.status is Status.PARTIAL
        assert outcome.detail == f"GPU 2: {found[2].error}"
        end_what_hangs(workers)


def end_what_hangs(workers: Workers) -> None:
    """The stand-in's driver is nobody's: here a worker in it may be killed."""
    for abandoned in workers._quarantine.workers():
        with contextlib.suppress(ProcessLookupError):
            os.kill(abandoned.worker_pid, signal.SIGKILL)


async def test_late_answers_are_taken(library: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_NVML_FAULT", "nvmlDeviceGetName:slow=300")
    async with launcher(library()) as workers:
        found, outcome = await look(workers)
    assert (outcome.status, sorted(found)) == (Status.OK, list(range(8)))


async def test_what_a_gpu_or_an_old_driver_lacks_is_absent(
    library: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_NVML_FAULT", "nvmlDeviceGetTotalEccErrors:3,nvmlDeviceGetNvLinkState:3")
    async with launcher(library("-DWITHOUT_POWER")) as workers:
        found, outcome = await look(workers)
    assert outcome.status is Status.OK
    lacking = {"power_watts", "ecc_corrected", "ecc_uncorrected", "nvlinks", "nvlinks_up", "nvlink_errors"}
    assert found[0] == replace(WHOLE, **dict.fromkeys(lacking))


@pytest.mark.parametrize(
    ("fault", "status", "detail"),
    [
        ("nvmlInitWithFlags:9", Status.UNAVAILABLE, "starting NVML: Driver Not Loaded (NVML 9)"),
        ("nvmlDeviceGetCount_v2:999", Status.UNAVAILABLE, "starting NVML: Unknown Error (NVML 999)"),
        ("nvmlInitWithFlags:hang", Status.TIMED_OUT, "stopped at its deadline while starting NVML ({})"),
        ("nvmlInitWithFlags:crash", Status.FAILED, "the worker was killed by SIGSEGV while starting NVML ({})"),
    ],
)
async def test_a_driver_that_does_not_start(
    library: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, fault: str, status: Outcome.Status, detail: str
) -> None:
    monkeypatch.setenv("STUB_NVML_FAULT", fault)
    folder = library()
    async with launcher(folder) as workers:
        found, outcome = await look(workers)
        assert found == {}
        assert (outcome.status, outcome.detail) == (status, detail.format(folder / "libnvidia-ml.so.1"))
        end_what_hangs(workers)


async def test_while_a_worker_is_stuck_in_the_driver_no_other_is_started(
    library: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with stalled_file(tmp_path) as disk:
        monkeypatch.setenv("STUB_NVML_FAULT", "nvmlDeviceGetPowerUsage@5:page")
        monkeypatch.setenv("STUB_NVML_PAGE", disk.path)
        async with launcher(library()) as workers:
            found, _ = await look(workers)
            assert found[5].error.endswith("asked for power")
            assert found[4] == gpu(4)
            await eventually(lambda: workers.abandoned() == 1)
            (abandoned,) = workers._quarantine.workers()
            again, outcome = await look(workers)
            assert (again, outcome.status, outcome.detail) == (
                {},
                Status.SKIPPED,
                f"quarantined: worker {abandoned.worker_pid} was killed and has not ended",
            )
            disk.release()
            await eventually(lambda: workers.abandoned() == 0)
            again, _ = await look(workers)
            assert again == {index: gpu(index) for index in range(8)}


async def test_without_a_driver_it_is_skipped_and_a_library_of_others_is_not_loaded(
    library: Callable[..., Path], tmp_path: Path
) -> None:
    async with launcher(tmp_path) as workers:
        _, outcome = await look(workers)
    assert (outcome.status, outcome.detail) == (Status.SKIPPED, "no driver library of NVIDIA or AMD is installed")
    folder = library()
    path = folder / "libnvidia-ml.so.1"
    path.chmod(0o777)
    async with launcher(folder) as workers:
        _, outcome = await look(workers)
    assert (outcome.status, outcome.detail, outcome.hint) == (
        Status.UNAVAILABLE,
        f"{path} may be changed by others than root: not loaded",
        f"chown root:root {path}",
    )


async def test_use_and_power_second_by_second_while_one_gpu_hangs(
    library: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB_NVML_FAULT", "nvmlDeviceGetPowerUsage@2:hang")
    seen: dict[int, list[Gpu]] = {}
    async with launcher(library()) as workers:
        outcome = await workers.run(
            WATCH_GPUS,
            Job(job_id=1, collector=WATCH_GPUS.name, deadline_ms=4000.0),
            on_part=lambda part: [seen.setdefault(each.index, []).append(each) for each in part.gpus],  # type: ignore[arg-type, func-returns-value]
            on_doing=lambda _what, _done: None,
        )
        end_what_hangs(workers)
    assert outcome.status is Status.OK
    assert sorted(seen) == [0, 1, 3, 4, 5, 6, 7]
    for index, samples in seen.items():
        assert len(samples) >= 2
        assert {each.utilization_percent for each in samples} == {100.0}
        assert [each.power_watts for each in samples] == pytest.approx([100.0 + index / 1000.0] * len(samples))
