"""GPUs of AMD through a stand-in for its library, in real workers, with the real package that reads it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from freezeframe.agentd.collectors.snapshot_gpus import SNAPSHOT_GPUS
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import Gpu, Outcome
from tests.support.children import PROGRAMS
from tests.support.launching import real_workers

pytestmark = [
    pytest.mark.needs("root", "gcc"),
    pytest.mark.skipif(importlib.util.find_spec("amdsmi") is None, reason="the package amdsmi is not installed"),
]
FIRST = Gpu(
    index=0,
    uuid="b0ff74a1-0000-1000-80e7-000000000000",
    utilization_percent=97.0,
    memory_utilization_percent=12.0,
    memory_used_bytes=float(1024 << 20),
    memory_total_bytes=float(196592 << 20),
    temperature_celsius=41.0,
    ecc_corrected=7.0,
    ecc_uncorrected=1.0,
)


def build(folder: Path) -> Path:
    (folder / "opt/rocm/lib").mkdir(parents=True)
    source = folder / "stub.c"
    source.write_text(
        subprocess.run(
            [sys.executable, str(PROGRAMS / "stub_amd_smi.py")], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    )
    library = folder / "opt/rocm/lib/libamd_smi.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", str(source), "-o", str(library)], check=True)
    return library


async def look(root: Path) -> tuple[list[Gpu], Outcome]:
    found: list[Gpu] = []
    async with real_workers(str(PROGRAMS / "gpu_launcher.py"), str(root)) as workers:
        outcome = await workers.run(
            SNAPSHOT_GPUS,
            Job(job_id=1, collector=SNAPSHOT_GPUS.name, deadline_ms=30_000.0),
            on_part=lambda part: found.extend(part.gpus),
            on_doing=lambda _what, _done: None,
        )
    return sorted(found, key=lambda gpu: gpu.index), outcome


async def test_what_the_library_tells_of_each_and_what_it_does_not(tmp_path: Path) -> None:
    build(tmp_path)
    found, outcome = await look(tmp_path)
    assert found[0] == FIRST
    assert (found[1].temperature_celsius, found[1].ecc_corrected) == (42.0, None)
    assert found[1].error == "ECC errors: AMDSMI_STATUS_IO - I/O Error"
    assert (outcome.status, outcome.detail) == (Outcome.Status.PARTIAL, f"GPU 1: {found[1].error}")


async def test_a_library_that_others_may_change_is_not_loaded(tmp_path: Path) -> None:
    library = build(tmp_path)
    library.chmod(0o777)
    found, outcome = await look(tmp_path)
    assert (found, outcome.status, outcome.detail, outcome.hint) == (
        [],
        Outcome.Status.UNAVAILABLE,
        f"{library} may be changed by others than root: not loaded",
        f"chown root:root {library}",
    )
