"""NOT_STUCK, IDLE and UNDETERMINED: the verdicts that accuse nobody."""

from __future__ import annotations

from dataclasses import replace

from freezeframe.judge.correlate.thresholds import EARLIER_QUESTION
from freezeframe.judge.model import AsyncioTask, Confidence, Endpoint, Process, Verdict
from freezeframe.judge.model.stacks import Frame
from freezeframe.judge.verdicts import conclude
from tests.support.scene import Scene

Code = Verdict.Code
Level = Confidence.Level


def test_streaming_is_not_stuck():
    scene = Scene()
    harness, router = scene.client(), scene.router()
    prefill, decode = scene.engine("prefill"), scene.engine("decode")
    scene.streams(harness, router, 28)
    scene.owed(harness, router, 2, age_ms=50)
    scene.streams(router, decode, 28)
    scene.owed(router, prefill, 2, age_ms=50)
    verdict = scene.verdict()
    assert (verdict.code, verdict.confidence, verdict.holder_pids) == (Code.NOT_STUCK, Level.HIGH, ())
    assert verdict.summary == "30 requests in flight, bytes flow to 28 connections."


def test_answers_of_which_none_comes_from_an_engine_tell_nothing():
    """A router that refuses each request at once moves as many bytes as one that serves them."""
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.served(harness, router, 28)
    scene.owed(harness, router, 2, age_ms=50)
    scene.idle(router, engine, 3)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids) == (Code.UNDETERMINED, ())
    assert verdict.summary.startswith("Clients get answers, and none comes from an engine")
    scene.served(router, engine)
    assert scene.verdict().code is Code.NOT_STUCK


def test_a_queue_that_moves_is_not_stuck():
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.streams(harness, router, 8)
    scene.owed(harness, router, 22, age_ms=4_000)
    scene.streams(router, engine, 8)
    scene.owed(router, engine, 22, age_ms=4_000)
    scene.gauges(engine, running=8, waiting=22, tokens=400)
    assert scene.verdict().code is Code.NOT_STUCK


def test_a_long_prefill_that_counts_tokens_is_not_stuck():
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 30, age_ms=5_000)
    scene.owed(router, engine, 30, age_ms=5_000)
    scene.gauges(engine, running=30, tokens=4_096)
    verdict = scene.verdict()
    assert (verdict.code, verdict.confidence) == (Code.NOT_STUCK, Level.MEDIUM)


def test_the_tokens_of_a_health_check_or_of_a_stray_are_no_progress():
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 30, age_ms=5_000)
    scene.owed(router, engine, 30, age_ms=5_000)
    scene.served(router, engine)
    scene.gauges(engine, tokens=2)
    assert scene.verdict().code is not Code.NOT_STUCK
    stray = scene.client("stray.py")
    scene.streams(stray, router)
    scene.streams(router, engine)
    scene.gauges(engine, running=1, tokens=50)
    assert scene.verdict().code is not Code.NOT_STUCK


def test_idle_with_keep_alives():
    scene = Scene()
    harness, router = scene.client(), scene.router()
    prefill, decode = scene.engine("prefill"), scene.engine("decode")
    scene.idle(harness, router, 30, age_ms=60_000)
    scene.idle(router, decode, 3, age_ms=2_000)
    scene.gauges(prefill)
    scene.gauges(decode)
    verdict = scene.verdict()
    assert (verdict.code, verdict.confidence, verdict.holder_pids) == (Code.IDLE, Level.HIGH, ())
    assert {r.hop for r in verdict.ruled_out} >= {"router", "prefill", "decode"}


def test_idle_while_schedulers_spin():
    scene = Scene()
    scene.router()
    engine = scene.engine()
    scene.state(engine.scheduler, "R", cpu_ms=1000)
    scene.gauges(engine)
    assert scene.verdict().code is Code.IDLE


def test_idle_with_one_look_is_low():
    scene = Scene(window_ms=0)
    scene.idle(scene.client(), scene.router(), 30)
    verdict = scene.verdict()
    assert (verdict.code, verdict.confidence) == (Code.IDLE, Level.LOW)
    assert any("one look" in unknown for unknown in verdict.unknowns)


def test_an_engine_that_has_not_accepted_an_earlier_question_is_not_called_idle():
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine(product="vllm")
    scene.idle(harness, router, 30, age_ms=7_000)
    scene.idle(router, engine, 30, age_ms=7_000)
    scene.gauges(engine)
    assert scene.verdict().code is Code.IDLE
    error = f"not asked: {EARLIER_QUESTION}"
    asked = Endpoint(pid=engine.http, address="127.0.0.1:8000", path="/version", error=error, purpose="liveness")
    assert conclude(replace(scene.snapshot(), endpoints=(asked,))).verdict.code is Code.UNDETERMINED


def test_short_requests_that_come_and_go_are_not_idle():
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.served(harness, router, 8)
    scene.served(router, engine, 8)
    scene.gauges(engine, tokens=300)
    verdict = scene.verdict()
    assert (verdict.code, verdict.confidence) == (Code.NOT_STUCK, Level.MEDIUM)
    assert verdict.summary == "Requests come and go: bytes went to 8 connections of clients in the window."


def test_scrapes_and_health_checks_leave_it_idle():
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    scene.owed(router, engine, 1, age_ms=300)
    scene.served("10.0.0.9", engine, 1)
    scene.gauges(engine)
    assert scene.verdict().code is Code.IDLE


def test_answers_that_stalled_are_not_called_idle():
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.idle(harness, router, 30, age_ms=40_000)
    scene.idle(router, engine, 30, age_ms=40_000)
    verdict = scene.verdict()
    assert verdict.code is Code.UNDETERMINED
    assert "30 connections to engines are open and quiet for too long" in verdict.summary


def test_requests_in_a_scheduler_are_not_called_idle_unless_nobody_could_get_them():
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    scene.gauges(engine, running=30)
    assert scene.verdict().code is Code.IDLE
    scene.idle(router, engine, 3)
    assert scene.verdict().code is Code.UNDETERMINED
    scene.sleeps(engine.scheduler)
    assert scene.verdict().code is Code.IDLE


def test_an_empty_host_is_undetermined():
    verdict = Scene().verdict()
    assert (verdict.code, verdict.summary) == (Code.UNDETERMINED, "No router and no engine was found on this host.")


def test_missing_sockets_are_undetermined_and_named():
    scene = Scene()
    scene.router()
    verdict = scene.lose("snapshot_sockets").verdict()
    assert verdict.code is Code.UNDETERMINED
    assert verdict.unknowns == ("snapshot_sockets ran out of time: looking",)


def test_a_slow_batch_is_not_called_idle():
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    scene.idle(scene.client(), router, 3, age_ms=1_500)
    scene.idle(router, engine, 3, age_ms=1_500)
    scene.gauges(engine)
    assert scene.verdict().code is Code.IDLE
    frames = tuple(Frame(function=f, file="managers/scheduler.py", line=1) for f in ("forward_decode", "run_batch"))
    scene.stack(engine.scheduler, frames)
    assert scene.verdict().code is Code.UNDETERMINED


def test_parts_of_an_engine_without_their_http_process_are_named():
    scene = Scene()
    scheduler = scene.process(Process.Role.SCHEDULER, "sglang::scheduler")
    verdict = scene.verdict()
    assert verdict.code is Code.UNDETERMINED
    named = f"sglang::scheduler (pid {scheduler})"
    assert verdict.summary.startswith(
        f"Parts of an engine run here without its HTTP process: {named}. It has ended, or"
    )


def test_processes_that_could_not_be_listed_are_not_said_to_be_absent():
    scene = Scene()
    scene.lose("find_processes")
    verdict = scene.verdict()
    assert (verdict.code, verdict.summary) == (
        Code.UNDETERMINED,
        "The processes of this host could not be listed: looking.",
    )


def test_tasks_tell_that_vllm_handed_requests_to_its_core():
    scene = Scene()
    router, engine = scene.router(), scene.engine(product="vllm")
    scene.owed(scene.client(), router, 30, age_ms=12_000)
    scene.owed(router, engine, 30, age_ms=12_000)
    scene.gauges(engine)
    snapshot = scene.snapshot()

    def waiting_in(function: str, file: str) -> Verdict:
        frames = (Frame(function="AsyncLLM.generate", file="vllm/v1/engine/async_llm.py", line=765),)
        frames += (Frame(function=function, file=file, line=67),)
        frames += (Frame(function="Event.wait", file="asyncio/locks.py", line=213),)
        tasks = tuple(
            AsyncioTask(pid=engine.http, fd=each.fd, state="waiting", frames=frames)
            for each in snapshot.sockets
            if each.pid == engine.http and each.accepted
        )
        verdict = conclude(replace(snapshot, asyncio_tasks=tasks)).verdict
        assert verdict is not None
        assert verdict.code is Code.UNDETERMINED
        return verdict

    verdict = waiting_in("RequestOutputCollector.get", "vllm/v1/engine/output_processor.py")
    (told,) = [each.text for each in verdict.evidence if "asyncio" in each.text]
    assert told.startswith("30 requests are in asyncio tasks of ")
    assert ", all of them waiting in RequestOutputCollector.get (" in told
    asked = [each for each in verdict.next_steps if "/is_paused" in each]
    assert len(asked) == 1
    assert "POST /resume" in asked[0]
    verdict = waiting_in("AsyncLLM.add_request", "vllm/v1/engine/async_llm.py")
    assert not any("/is_paused" in each for each in verdict.next_steps)
