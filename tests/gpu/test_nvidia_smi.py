"""Every value beside nvidia-smi's, on a real GPU, in one run."""

from __future__ import annotations

import csv
import subprocess

import pytest

from freezeframe.agentd.collectors.snapshot_gpus import SNAPSHOT_GPUS
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import Gpu, Outcome
from tests.support.launching import real_workers

pytestmark = pytest.mark.needs("gpu")
MIB = float(1 << 20)

# Field, nvidia-smi's name of it, factor, and how far two looks a moment apart may differ.
NUMBERS = (
    ("memory_total_bytes", "memory.total", MIB, MIB),
    ("memory_used_bytes", "memory.used", MIB, 512 * MIB),
    ("power_watts", "power.draw.instant", 1.0, 60.0),
    ("power_limit_watts", "enforced.power.limit", 1.0, 0.01),
    ("temperature_celsius", "temperature.gpu", 1.0, 5.0),
    ("sm_clock_mhz", "clocks.sm", 1.0, 2000.0),
    ("memory_clock_mhz", "clocks.mem", 1.0, 0.0),
    ("pcie_generation", "pcie.link.gen.current", 1.0, 4.0),
    ("pcie_width", "pcie.link.width.current", 1.0, 0.0),
    ("ecc_corrected", "ecc.errors.corrected.volatile.total", 1.0, 0.0),
    ("ecc_uncorrected", "ecc.errors.uncorrected.volatile.total", 1.0, 0.0),
    ("remapped_rows", "remapped_rows.correctable", 1.0, 64.0),
    ("utilization_percent", "utilization.gpu", 1.0, 100.0),
)


def ask(*fields: str) -> list[list[str]]:
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout
    return [[cell.strip() for cell in row] for row in csv.reader(told.splitlines())]


async def look() -> tuple[list[Gpu], Outcome]:
    found: list[Gpu] = []
    async with real_workers() as workers:
        outcome = await workers.run(
            SNAPSHOT_GPUS,
            Job(job_id=1, collector=SNAPSHOT_GPUS.name, deadline_ms=60_000.0),
            on_part=lambda part: found.extend(part.gpus),
            on_doing=lambda _what, _done: None,
        )
    return sorted(found, key=lambda gpu: gpu.index), outcome


async def test_each_value_is_nvidia_smis() -> None:
    names = ask("uuid", "name", "pci.bus_id", "persistence_mode", "compute_mode")
    numbers = ask(*(name for _, name, _, _ in NUMBERS))
    found, outcome = await look()
    assert (outcome.status, outcome.detail) == (Outcome.Status.OK, "")
    assert [
        [gpu.uuid, gpu.name, gpu.bus_id, "Enabled" if gpu.persistence else "Disabled", gpu.compute_mode]
        for gpu in found
    ] == [[*row[:4], row[4].lower().replace("_", " ")] for row in names]
    for gpu, row in zip(found, numbers, strict=True):
        for (field, name, factor, tolerance), cell in zip(NUMBERS, row, strict=True):
            value = getattr(gpu, field)
            if cell in ("[N/A]", "N/A", "[Not Supported]"):
                assert value in (None, 0.0), name
            else:
                assert value == pytest.approx(float(cell) * factor, abs=tolerance), name
