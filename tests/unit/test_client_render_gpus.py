from __future__ import annotations

import pytest

from freezeframe.client.render.sections.host import gpus
from freezeframe.v1 import host_pb2, process_pb2, snapshot_pb2

USED = host_pb2.GpuProcess(pid=4711, memory_bytes=float(16 << 30))


def shown(gpu: host_pb2.Gpu) -> tuple[str, str]:
    """What stands under USED BY and REMARKS."""
    scheduler = process_pb2.Process(pid=4711, role=process_pb2.Process.Role.SCHEDULER, disaggregation="decode")
    (table,) = gpus(snapshot_pb2.Snapshot(gpus=[gpu], processes=[scheduler]))
    assert [column.title for column in table.columns[-2:]] == ["USED BY", "REMARKS"]
    return table.rows[0][-2:]


def test_who_uses_it_by_role_and_memory() -> None:
    users, _ = shown(host_pb2.Gpu(processes=[USED, host_pb2.GpuProcess(pid=99)]))
    assert users == "4711 scheduler (decode) 17.2 GB, 99"


@pytest.mark.parametrize(
    ("gpu", "said"),
    [
        (host_pb2.Gpu(), ""),
        (host_pb2.Gpu(error="GPU is lost (NVML 15)"), "GPU is lost (NVML 15)"),
        (host_pb2.Gpu(throttle_reasons=["power cap"], ecc_uncorrected=2), "power cap, 2 uncorrected ECC errors"),
        (host_pb2.Gpu(remap_pending=True), "a row waits for a reset to be remapped"),
        (host_pb2.Gpu(remap_pending=True, remap_failed=True), "remapping a row failed"),
        (host_pb2.Gpu(nvlinks=18, nvlinks_up=18, ecc_corrected=7), ""),
        (host_pb2.Gpu(nvlinks=18, nvlinks_up=17), "17 of 18 NVLinks up"),
    ],
)
def test_what_is_wrong_with_it(gpu: host_pb2.Gpu, said: str) -> None:
    assert shown(gpu)[1] == said
