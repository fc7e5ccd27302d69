from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from freezeframe.judge.model import Confidence, Gpu, Snapshot, Verdict
from freezeframe.judge.model.host import GpuProcess
from freezeframe.judge.model.stacks import Frame
from freezeframe.judge.verdicts import conclude
from tests.support.rank_scenes import BROADCAST, IDLE, ranked
from tests.support.scene import Engine, Scene

Code = Verdict.Code
Level = Confidence.Level

SYNCHRONISE = (
    Frame(function="Event.synchronize", file="/venv/torch/cuda/streams.py", line=231),
    Frame(function="Scheduler.process_batch_result_decode", file="/venv/sglang/srt/managers/scheduler.py", line=40),
    Frame(function="Scheduler.event_loop_overlap", file="/venv/sglang/srt/managers/scheduler.py", line=1200),
)


def gpu(index: int, *pids: int, **fields: Any) -> Gpu:
    known = {"utilization_percent": 97.0, "power_watts": 180.0, "power_limit_watts": 700.0, "sm_clock_mhz": 1980.0}
    return Gpu(**{"index": index, "processes": tuple(GpuProcess(pid=pid) for pid in pids), **known, **fields})


def judged(*stacks: tuple[Frame, ...], age_ms: float = 41_000, gpus: Any = None, **gauges: float) -> Snapshot:
    scene, engine = ranked(*stacks, age_ms=age_ms)
    scene.gauges(engine, **gauges)
    return look(scene, engine, gpus)


def look(scene: Scene, engine: Engine, gpus: Any = None) -> Snapshot:
    ranks = [pid for pid, each in scene.processes.items() if each.title == "sglang::scheduler"]
    own = tuple(gpu(index, pid) for index, pid in enumerate(ranks)) if gpus is None else gpus(ranks)
    return conclude(replace(scene.snapshot(), gpus=own))


def codes(snapshot: Snapshot) -> list[Verdict.Code]:
    return [finding.code for finding in snapshot.findings]


def test_every_rank_waits_for_a_gpu_that_is_busy_at_low_power() -> None:
    snapshot = judged(SYNCHRONISE, SYNCHRONISE, running=30)
    verdict = snapshot.verdict
    assert verdict is not None
    ranks = tuple(rank.pid for rank in snapshot.ranks)
    assert (verdict.code, verdict.hop, verdict.holder_pids) == (Code.GPU_SPIN, "scheduler", ranks)
    assert (verdict.confidence, verdict.explains) == (Level.HIGH, 30)
    assert verdict.evidence[1].text == "GPU 0: 97 % use at 180 of 700 W, 1980 MHz: it spins"
    assert verdict.evidence[1].ref == "gpus[0]"
    assert not [each for each in verdict.ruled_out if each.hop.startswith("GPUs")]


@pytest.mark.parametrize(
    "fields",
    [
        {"power_watts": 420.0},
        {"utilization_percent": 60.0},
        {"throttle_reasons": ("power brake",)},
        {"throttle_reasons": ("hardware thermal slowdown",)},
        {"power_limit_watts": None},
        {"power_watts": None},
        {"age_ms": 4_000.0},
        {"error": "GPU is lost (NVML 15)"},
    ],
    ids=["computes", "half-idle", "brake", "heat", "no-limit", "no-power", "old-sample", "lost"],
)
def test_lookalike_a_gpu_that_tells_another_story(fields: dict[str, Any]) -> None:
    snapshot = judged(SYNCHRONISE, gpus=lambda ranks: (gpu(0, ranks[0], **fields),))
    assert Code.GPU_SPIN not in codes(snapshot)


def test_lookalike_a_neighbour_keeps_the_gpu_busy() -> None:
    assert Code.GPU_SPIN not in codes(judged(SYNCHRONISE, gpus=lambda ranks: (gpu(0, ranks[0], 4711),)))


def test_lookalike_one_gpu_of_two_computes() -> None:
    snapshot = judged(
        SYNCHRONISE, SYNCHRONISE, gpus=lambda ranks: (gpu(0, ranks[0]), gpu(1, ranks[1], power_watts=600.0))
    )
    assert Code.GPU_SPIN not in codes(snapshot)


@pytest.mark.parametrize("other", [IDLE, BROADCAST], ids=["idle", "broadcast"])
def test_lookalike_one_rank_is_elsewhere(other: tuple[Frame, ...]) -> None:
    assert Code.GPU_SPIN not in codes(judged(SYNCHRONISE, SYNCHRONISE, other))


def test_near_misses() -> None:
    assert Code.GPU_SPIN not in codes(judged(SYNCHRONISE, age_ms=4_000))
    assert Code.GPU_SPIN not in codes(judged(SYNCHRONISE, tokens=64))
    assert Code.GPU_SPIN not in codes(judged(SYNCHRONISE, gpus=lambda _ranks: ()))


def test_without_counted_tokens_it_is_less_sure() -> None:
    scene, engine = ranked(SYNCHRONISE)
    verdict = look(scene, engine).verdict
    assert verdict is not None
    assert (verdict.code, verdict.confidence) == (Code.GPU_SPIN, Level.MEDIUM)


def test_gpus_that_rest_are_ruled_out() -> None:
    snapshot = judged(
        IDLE, gpus=lambda ranks: (gpu(0, ranks[0], utilization_percent=0.0, power_watts=75.0, sm_clock_mhz=210.0),)
    )
    assert snapshot.verdict is not None
    (found,) = [each for each in snapshot.verdict.ruled_out if each.hop.startswith("GPUs of the engine")]
    assert found.evidence[0].text == "GPU 0: 0 % use at 75 of 700 W, 210 MHz: it rests"
    busy = judged(IDLE, gpus=lambda ranks: (gpu(0, ranks[0], utilization_percent=0.0, power_watts=300.0),))
    assert busy.verdict is not None
    assert not [each for each in busy.verdict.ruled_out if each.hop.startswith("GPUs")]
