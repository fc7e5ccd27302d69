from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from freezeframe.judge.model import Confidence, Gpu, KernelEvent, Outcome, Verdict
from freezeframe.judge.model.host import GpuProcess
from freezeframe.judge.verdicts import conclude
from tests.support.scene import Engine, Scene

Code = Verdict.Code
Level = Confidence.Level
# The bus as NVML and the kernel's log write it.
BUS, DEVICE = "00000000:04:00.0", "0000:04:00"


def stuck() -> tuple[Scene, Engine]:
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 30, age_ms=5_000)
    scene.owed(router, engine, 30, age_ms=5_000)
    return scene, engine


def verdict(scene: Scene, **sections: Any) -> Verdict:
    snapshot = scene.snapshot()
    extra = sections.pop("outcomes", ())
    judged = conclude(replace(snapshot, outcomes=(*snapshot.outcomes, *extra), **sections)).verdict
    assert judged is not None
    return judged


def xid(**fields: Any) -> KernelEvent:
    return KernelEvent(**{"kind": "xid", "code": 79, "device": DEVICE, "age_ms": 60_000.0, "fatal": True, **fields})


def gpu(pid: int, **fields: Any) -> Gpu:
    return Gpu(**{"bus_id": BUS, "processes": (GpuProcess(pid=pid),), **fields})


def test_an_xid_of_the_engines_gpu() -> None:
    scene, engine = stuck()
    found = verdict(scene, gpus=(gpu(engine.scheduler),), kernel_events=(xid(meaning="fallen off the bus"),))
    assert (found.code, found.holder_pids, found.confidence, found.explains) == (
        Code.GPU_FAULT,
        (engine.scheduler,),
        Level.HIGH,
        30,
    )
    assert found.evidence[0].text == "the kernel reported Xid 79 of 0000:04:00, fallen off the bus 60 s ago"
    assert found.evidence[0].ref == "kernel_events[0]"


def test_an_xid_that_names_a_process_of_the_engine() -> None:
    scene, engine = stuck()
    found = verdict(scene, kernel_events=(xid(code=119, pid=engine.scheduler),))
    assert (found.code, found.confidence) == (Code.GPU_FAULT, Level.HIGH)


def test_an_xid_of_an_unknown_gpu_where_there_is_one_engine() -> None:
    scene, _ = stuck()
    found = verdict(scene, kernel_events=(xid(),))
    assert (found.code, found.confidence) == (Code.GPU_FAULT, Level.MEDIUM)


@pytest.mark.parametrize(
    "event",
    [
        xid(fatal=False, code=31),
        # From before the engine's start, an hour ago.
        xid(age_ms=3_700_000.0),
        KernelEvent(kind="oom", age_ms=1.0),
    ],
)
def test_lookalike_an_xid_that_stops_no_gpu_and_one_of_an_earlier_engine(event: KernelEvent) -> None:
    scene, engine = stuck()
    found = verdict(scene, gpus=(gpu(engine.scheduler),), kernel_events=(event,))
    assert found.code is not Code.GPU_FAULT


def test_lookalike_an_xid_of_somebody_elses_gpu() -> None:
    scene, engine = stuck()
    other = gpu(99, bus_id="00000000:05:00.0")
    found = verdict(scene, gpus=(gpu(engine.scheduler), other), kernel_events=(xid(device="0000:05:00"),))
    assert found.code is not Code.GPU_FAULT


def test_near_miss_an_xid_with_nothing_stuck() -> None:
    scene = Scene()
    engine = scene.engine()
    scene.idle(scene.client(), engine)
    found = verdict(scene, gpus=(gpu(engine.scheduler),), kernel_events=(xid(),))
    assert found.code is not Code.GPU_FAULT


def test_a_lost_gpu_and_one_that_only_lacks_an_answer() -> None:
    scene, _ = stuck()
    found = verdict(scene, gpus=(Gpu(index=3, error="GPU is lost (NVML 15)"),))
    assert (found.code, found.confidence) == (Code.GPU_FAULT, Level.MEDIUM)
    found = verdict(scene, gpus=(Gpu(index=3, error="temperature: Unknown Error (NVML 999)"),))
    assert found.code is not Code.GPU_FAULT


@pytest.mark.parametrize(
    ("status", "code"),
    [(Outcome.Status.TIMED_OUT, Code.GPU_FAULT), (Outcome.Status.SKIPPED, None), (Outcome.Status.UNAVAILABLE, None)],
)
def test_a_driver_that_gives_no_answer(status: Outcome.Status, code: Verdict.Code | None) -> None:
    scene, _ = stuck()
    found = verdict(scene, outcomes=(Outcome(collector="snapshot_gpus", status=status, detail="starting NVML"),))
    assert (found.code is Code.GPU_FAULT) == (code is Code.GPU_FAULT)
