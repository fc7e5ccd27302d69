"""Engines of several ranks, made by hand: where each stands, and how it got through the window."""

from __future__ import annotations

from dataclasses import replace

from freezeframe.judge.model import Process
from freezeframe.judge.model.stacks import Frame
from tests.support.scene import Engine, Scene

_C10D = "/venv/torch/distributed/distributed_c10d.py"
_SRT = "/venv/sglang/srt"
_LOOP = (f"{_SRT}/managers/scheduler.py", "Scheduler.event_loop_normal")


def _frames(*pairs: tuple[str, str]) -> tuple[Frame, ...]:
    return tuple(Frame(function=function, file=file, line=40 + index) for index, (file, function) in enumerate(pairs))


BROADCAST = _frames(
    (_C10D, "broadcast"),
    (f"{_SRT}/utils/common.py", "broadcast_pyobj"),
    (f"{_SRT}/managers/scheduler_components/request_receiver.py", "_broadcast_reqs_across_ranks"),
    _LOOP,
)
PREFETCH = _frames(
    (_C10D, "all_reduce"),
    (f"{_SRT}/mem_cache/hiradix_cache.py", "HiRadixCache.can_terminate_prefetch"),
    (f"{_SRT}/managers/scheduler.py", "Scheduler.get_next_batch_to_run"),
    _LOOP,
)
TRANSFER = _frames(
    (_C10D, "all_reduce"),
    (f"{_SRT}/disaggregation/utils.py", "poll_and_all_reduce"),
    (f"{_SRT}/disaggregation/decode.py", "pop_transferred"),
    _LOOP,
)
IDLE = _frames((f"{_SRT}/managers/scheduler_components/idle_sleeper.py", "IdleSleeper.maybe_sleep"), _LOOP)
BATCH = _frames((f"{_SRT}/managers/tp_worker.py", "TpModelWorker.forward_batch_generation"), _LOOP)
ADMISSION = _frames(
    (f"{_SRT}/managers/schedule_policy.py", "PrefillAdder.add_one_req"),
    (f"{_SRT}/managers/scheduler.py", "Scheduler._get_new_batch_prefill_raw"),
    (f"{_SRT}/managers/scheduler.py", "Scheduler.get_next_batch_to_run"),
    _LOOP,
)
ROUND = _frames((f"{_SRT}/managers/scheduler.py", "Scheduler.get_next_batch_to_run"), _LOOP)


def ranked(*stacks: tuple[Frame, ...], labels: tuple[str, ...] = (), age_ms: float = 41_000) -> tuple[Scene, Engine]:
    """One engine with a rank per stack, each asleep there for the whole window; 30 requests are owed."""
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 30, age_ms=age_ms)
    scene.owed(router, engine, 30, age_ms=age_ms)
    pids = [engine.scheduler]
    common = {"product": "sglang", "python": "3.11", "engine_pid": engine.http}
    pids += [scene.process(Process.Role.SCHEDULER, "sglang::scheduler", **common) for _ in stacks[1:]]
    for number, (pid, frames) in enumerate(zip(pids, stacks, strict=True)):
        scene.change(pid, rank=labels[number] if labels else f"TP{number}")
        switches(scene, pid, 0)
        scene.stack(pid, frames)
    return scene, engine


def ranks_of(scene: Scene) -> list[int]:
    return [pid for pid, process in scene.processes.items() if process.role is Process.Role.SCHEDULER]


def switches(scene: Scene, pid: int, count: int) -> None:
    main = replace(scene.processes[pid].threads[0], voluntary_switches_delta=count, involuntary_switches_delta=0)
    scene.change(pid, threads=(main,))
