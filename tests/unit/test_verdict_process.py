"""PROCESS_STOPPED, PROCESS_DEAD, PROCESS_UNINTERRUPTIBLE."""

from __future__ import annotations

from dataclasses import replace

import pytest

from freezeframe.judge.model import AsyncioTask, Confidence, Lock, Outcome, Process, Verdict, Waiter
from freezeframe.judge.model.stacks import Frame
from freezeframe.judge.verdicts import conclude
from tests.support.scene import Engine, Scene

Code = Verdict.Code
Role = Process.Role
Level = Confidence.Level
Role = Process.Role


def stuck(window_ms: float = 1000.0) -> tuple[Scene, int, int, Engine]:
    scene = Scene(window_ms=window_ms)
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 30, age_ms=5_000)
    scene.owed(router, engine, 30, age_ms=5_000)
    return scene, harness, router, engine


@pytest.mark.parametrize("window_ms", [0.0, 1000.0])
def test_stopped_router(window_ms):
    scene, _, router, _ = stuck(window_ms)
    scene.state(router, "T")
    verdict = scene.verdict()
    assert (verdict.code, verdict.hop, verdict.holder_pids) == (Code.PROCESS_STOPPED, "router", (router,))
    assert (verdict.confidence, verdict.explains) == (Level.HIGH, 30)
    assert verdict.summary == (
        f"The router process sglang::router (pid {router}) is stopped by a signal; 30 requests wait behind it."
    )


def test_stopped_engine_with_its_backlog_is_one_finding():
    scene, _, router, engine = stuck()
    scene.unaccepted(router, engine, 14, age_ms=5_000)
    scene.unread(router, engine, 3, age_ms=5_000)
    scene.state(engine.http, "T")
    snapshot = scene.conclude()
    assert [f.code for f in snapshot.findings] == [Code.PROCESS_STOPPED]
    assert (snapshot.verdict.hop, snapshot.verdict.holder_pids) == ("engine", (engine.http,))


def test_stopped_scheduler():
    scene, _, _, engine = stuck()
    scene.state(engine.scheduler, "T")
    verdict = scene.verdict()
    assert (verdict.code, verdict.hop, verdict.explains) == (Code.PROCESS_STOPPED, "scheduler", 30)


def test_the_tasks_that_wait_for_a_stopped_scheduler_are_counted():
    scene, _, _, engine = stuck()
    scene.state(engine.scheduler, "T")
    snapshot = scene.snapshot()
    waits = Frame(function="TokenizerManager._stream_one_response", file="sglang/tokenizer_manager.py", line=612)
    tasks = tuple(
        AsyncioTask(pid=engine.http, address=f"{socket.fd:x}", fd=socket.fd, state="waiting", frames=(waits,))
        for socket in snapshot.sockets
        if socket.pid == engine.http and socket.accepted
    )
    verdict = conclude(replace(snapshot, asyncio_tasks=tasks)).verdict
    assert verdict.evidence[-1].text == (
        f"30 requests are in asyncio tasks of python (pid {engine.http}), all of them waiting in "
        "TokenizerManager._stream_one_response (sglang/tokenizer_manager.py:612)"
    )
    assert verdict.evidence[-1].ref.startswith("asyncio_tasks[0] asyncio_tasks[1] ")


def test_frozen_cgroup():
    scene, _, _, engine = stuck()
    scene.change(engine.http, frozen=True, cgroup="/kubepods/pod1")
    verdict = scene.verdict()
    assert verdict.code is Code.PROCESS_STOPPED
    assert "/kubepods/pod1" in verdict.next_steps[0]


def test_near_miss_a_stop_that_was_over():
    scene, _, router, _ = stuck()
    scene.state(router, "T")
    main = replace(scene.processes[router].threads[0], state_after="S")
    scene.change(router, threads=(main,))
    assert scene.verdict().code is Code.UNDETERMINED


def test_lookalike_a_stopped_program_without_a_connection():
    scene, *_ = stuck()
    scene.state(scene.client("vim"), "T")
    assert scene.verdict().code is Code.UNDETERMINED


def test_a_stopped_engine_whose_state_is_unknown_is_not_accused_of_something_else():
    scene, _, router, engine = stuck()
    scene.unaccepted(router, engine, 14, age_ms=5_000)
    scene.lose("snapshot_processes")
    assert scene.verdict().code is Code.UNDETERMINED


def test_hidden_kernel_stacks_say_nothing_of_states():
    scene, _, router, engine = stuck()
    scene.unaccepted(router, engine, 14, age_ms=5_000)
    scene.outcomes["snapshot_processes"] = Outcome(
        collector="snapshot_processes", status=Outcome.Status.PARTIAL, detail="kernel stacks of 27 threads are hidden"
    )
    assert scene.verdict().code is Code.ENGINE_NOT_ACCEPTING


@pytest.mark.parametrize("how", [{"state": "Z"}, {"exited": True}])
def test_dead_scheduler(how):
    scene, _, _, engine = stuck()
    scene.change(engine.scheduler, **how)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids, verdict.confidence) == (
        Code.PROCESS_DEAD,
        (engine.scheduler,),
        Level.HIGH,
    )


def test_lookalike_a_client_that_ended():
    scene, harness, *_ = stuck()
    scene.change(harness, exited=True)
    assert scene.verdict().code is Code.UNDETERMINED


def test_lookalike_a_router_and_a_scheduler_of_somebody_else_that_ended_with_nobody_connected():
    scene, *_ = stuck()
    before = scene.verdict()
    scene.change(scene.router(), exited=True)
    scene.process(Role.SCHEDULER, "sglang::scheduler", exited=True)
    scene.process(Role.SCHEDULER, "sglang::scheduler", state="Z")
    after = scene.verdict()
    assert (after.code, after.holder_pids) == (before.code, before.holder_pids)


def test_near_miss_uninterruptible_at_two_looks_that_a_slow_disk_may_lie_between():
    scene, _, _, engine = stuck(window_ms=300.0)
    scene.state(engine.scheduler, "D")
    main = replace(scene.processes[engine.scheduler].threads[0], wchan="vm_mmap_pgoff", voluntary_switches_delta=0)
    scene.change(engine.scheduler, threads=(main,))
    assert scene.verdict().code is not Code.PROCESS_UNINTERRUPTIBLE


def test_uninterruptible_at_both_looks():
    scene, _, _, engine = stuck()
    scene.state(engine.scheduler, "D")
    main = replace(scene.processes[engine.scheduler].threads[0], wchan="nv_wait", voluntary_switches_delta=0)
    scene.change(engine.scheduler, threads=(main,))
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids) == (Code.PROCESS_UNINTERRUPTIBLE, (engine.scheduler,))
    assert "nv_wait" in verdict.summary


def test_near_miss_uninterruptible_with_switches_or_with_one_look():
    scene, _, _, engine = stuck()
    scene.state(engine.scheduler, "D")
    main = replace(scene.processes[engine.scheduler].threads[0], voluntary_switches_delta=40)
    scene.change(engine.scheduler, threads=(main,))
    assert scene.verdict().code is Code.UNDETERMINED
    scene, _, _, engine = stuck(0.0)
    scene.state(engine.scheduler, "D")
    assert scene.verdict().code is Code.UNDETERMINED


def test_one_frozen_cgroup_is_one_finding():
    scene, _, _, engine = stuck()
    whole = (engine.http, engine.scheduler, engine.detokenizer)
    for pid in whole:
        scene.change(pid, frozen=True, cgroup="/pod1")
    snapshot = scene.conclude()
    assert [(f.code, f.holder_pids) for f in snapshot.findings] == [(Code.PROCESS_STOPPED, whole)]
    assert "and 2 others of its cgroup are in a frozen cgroup; 30 requests wait behind it" in snapshot.verdict.summary


def test_a_zombie_ended_before_the_capture():
    scene, _, _, engine = stuck()
    scene.state(engine.scheduler, "Z")
    scene.change(engine.scheduler, exited=True)
    assert "is a zombie" in scene.verdict().summary


def test_lookalike_a_part_of_an_engine_that_was_ended_as_a_whole():
    scene, _, _, _ = stuck()
    scene.process(Role.SCHEDULER, "sglang::schedul", state="Z", exited=True, parent_pid=1)
    assert scene.verdict().code is not Code.PROCESS_DEAD


def full_pipe(scene: Scene, pid: int, logger: int, **known: object) -> Lock:
    waiter = Waiter(tid=pid, operation="write", endless=True, steady=True)
    lock = Lock(
        pid=pid, kind="pipe", object="pipe:[9]", owner_pid=logger, releaser_pids=(logger,), waiters=(waiter,),
        owner_confidence=Level.HIGH, owner_doing="stopped",
    )  # fmt: skip
    return replace(lock, **known)


def test_a_router_that_writes_to_a_stopped_logger():
    scene, _, router, _ = stuck()
    snapshot = conclude(replace(scene.snapshot(), locks=(full_pipe(scene, router, 812),)))
    verdict = snapshot.verdict
    assert (verdict.code, verdict.hop, verdict.holder_pids) == (Code.PROCESS_STOPPED, "router", (812,))
    assert (verdict.confidence, verdict.explains) == (Level.HIGH, 30)
    assert verdict.summary == "pid 812 is stopped, and the router waits for it; 30 requests wait behind it."
    chain = f"thread {router} of sglang::router (pid {router}) ▸ write pipe:[9] ▸ pid 812, stopped"
    assert (verdict.evidence[0].text, verdict.evidence[0].ref) == (chain, "locks[0]")


@pytest.mark.parametrize(
    "known",
    [
        {"owner_doing": "read fd 0 (pipe:[9])"},
        {"waiters": (Waiter(tid=1, operation="write", steady=True),)},
        {"waiters": (Waiter(tid=1, operation="write", endless=True),)},
    ],
    ids=["it reads", "with a timeout", "not for long"],
)
def test_a_pipe_that_is_full_for_a_moment(known):
    scene, _, router, _ = stuck()
    snapshot = conclude(replace(scene.snapshot(), locks=(full_pipe(scene, router, 812, **known),)))
    assert Code.PROCESS_STOPPED not in [finding.code for finding in snapshot.findings]


def test_near_miss_a_worker_of_an_engine_that_has_ended():
    """Init has not taken it from the table yet; it belongs to no engine that serves here."""
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.streams(harness, router)
    scene.streams(router, engine)
    left = scene.process(Process.Role.TOKENIZER_WORKER, "sglang::tokenizer_worker:9")
    scene.state(left, "Z")
    assert Code.PROCESS_DEAD not in [finding.code for finding in scene.conclude().findings]
    scene.change(left, engine_pid=engine.http)
    assert [finding.holder_pids for finding in scene.conclude().findings] == [(left,)]
