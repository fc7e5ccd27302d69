"""DECODE_STALLED and PREFILL_STALLED."""

from __future__ import annotations

import pytest

from freezeframe.judge.model import Confidence, Verdict
from freezeframe.judge.model.stacks import Frame
from tests.support.scene import SCHEDULER_LOOP, Engine, Scene

Code = Verdict.Code
Level = Confidence.Level


def in_a_batch(scene: Scene, engine: Engine, function: str, *, same: bool = True) -> None:
    frames = (
        Frame(function=f"Scheduler.{function}", file="managers/scheduler.py", line=240),
        Frame(function="Scheduler.run_batch", file="managers/scheduler.py", line=215),
        Frame(function="Scheduler.event_loop_normal", file="managers/scheduler.py", line=120),
    )
    scene.stack(engine.scheduler, frames, same=same)


def begun(kind: str, *, quiet_ms: float = 12_000) -> tuple[Scene, Engine]:
    """30 answers that have begun and are quiet."""
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine(kind)
    scene.idle(harness, router, 30, age_ms=quiet_ms)
    scene.idle(router, engine, 30, age_ms=quiet_ms)
    scene.gauges(engine)
    in_a_batch(scene, engine, "forward_decode")
    return scene, engine


@pytest.mark.parametrize("kind", ["", "decode"])
def test_answers_stalled_in_a_batch(kind):
    scene, engine = begun(kind)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids, verdict.explains) == (Code.DECODE_STALLED, (engine.scheduler,), 30)
    assert verdict.confidence is Level.HIGH
    assert "30 requests of harness.py" in verdict.summary
    assert "get no token for 12 s" in verdict.summary


def test_by_its_gauge_and_a_stack_that_is_not_idle():
    scene, engine = begun("decode")
    scene.stack(engine.scheduler, SCHEDULER_LOOP)
    scene.gauges(engine, running=30)
    verdict = scene.verdict()
    assert (verdict.code, verdict.confidence) == (Code.DECODE_STALLED, Level.MEDIUM)
    # An idle one's gauges may say that it runs what has ended: websockets are open and quiet, too.
    for stack in ((), (Frame(function="IdleSleeper.maybe_sleep", file="sglang/srt/utils.py", line=1), *SCHEDULER_LOOP)):
        scene.stack(engine.scheduler, stack, same=None)
        assert scene.verdict().code is Code.UNDETERMINED


def test_where_no_answer_has_begun_the_gauge_must_be_of_late():
    def codes(age_ms):
        scene = Scene()
        harness, router, engine = scene.client(), scene.router(), scene.engine()
        scene.owed(harness, router, 30, age_ms=20_000)
        scene.owed(router, engine, 30, age_ms=20_000)
        scene.gauges(engine, running=30, age_ms=age_ms)
        return {finding.code for finding in scene.conclude().findings}

    assert Code.PREFILL_STALLED in codes(2_000)
    assert Code.PREFILL_STALLED not in codes(20_000)
    # Over HTTP a value has no age: it may be from before.
    assert Code.PREFILL_STALLED not in codes(None)


def test_near_miss_the_answers_may_be_idle_connections():
    scene, _ = begun("decode", quiet_ms=4_000)
    assert scene.verdict().code is Code.UNDETERMINED


def test_near_miss_two_batches():
    scene, engine = begun("decode")
    in_a_batch(scene, engine, "forward_decode", same=False)
    assert scene.verdict().code is Code.UNDETERMINED


def test_near_miss_it_counts_tokens():
    scene, engine = begun("decode")
    scene.gauges(engine, tokens=30)
    assert scene.verdict().code is Code.UNDETERMINED


def test_nobody_waits_for_what_its_clients_have_left():
    scene = Scene()
    router, engine = scene.router(), scene.engine("decode")
    scene.idle(router, engine, 30, age_ms=12_000)
    scene.gauges(engine)
    in_a_batch(scene, engine, "forward_decode")
    assert scene.verdict().code is Code.ZOMBIE_UPSTREAM


@pytest.mark.parametrize("kind", ["", "prefill"])
def test_prefill(kind):
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine(kind)
    scene.owed(harness, router, 30, age_ms=12_000)
    scene.owed(router, engine, 30, age_ms=12_000)
    scene.gauges(engine)
    in_a_batch(scene, engine, "forward_extend")
    snapshot = scene.conclude()
    assert [f.code for f in snapshot.findings if f.hop.startswith("scheduler")] == [Code.PREFILL_STALLED]
    assert snapshot.verdict.holder_pids == (engine.scheduler,)


def test_lookalike_a_long_prefill():
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 30, age_ms=6_000)
    scene.owed(router, engine, 30, age_ms=6_000)
    scene.gauges(engine)
    in_a_batch(scene, engine, "forward_extend")
    assert scene.verdict().code is Code.UNDETERMINED
