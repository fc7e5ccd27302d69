from __future__ import annotations

from dataclasses import replace

from freezeframe.judge.model import Endpoint, KernelEvent, Pressure, Process, Throttle, Verdict
from freezeframe.judge.verdicts import conclude
from tests.support.scene import Engine, Scene

Code = Verdict.Code


def starving() -> tuple[Scene, int, Engine]:
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 30, age_ms=5_000)
    scene.owed(router, engine, 30, age_ms=5_000)
    scene.state(engine.scheduler, "R", cpu_ms=12)
    return scene, router, engine


def pressed(scene: Scene, some_window: float) -> None:
    scene.host = replace(scene.host, pressure=(Pressure(resource="cpu", some_window=some_window),))


def test_runnable_without_cpu_under_pressure():
    scene, _, engine = starving()
    pressed(scene, 97)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids, verdict.explains) == (Code.HOST_STARVED, (engine.scheduler,), 30)


def test_near_miss_it_rested_in_between_and_needs_no_more():
    for delay_ms, code in ((900.0, Code.HOST_STARVED), (300.0, Code.UNDETERMINED)):
        scene, _, engine = starving()
        pressed(scene, 97)
        main = replace(scene.processes[engine.scheduler].threads[0], run_delay_ms_delta=delay_ms)
        scene.change(engine.scheduler, threads=(main,))
        assert scene.verdict().code is code


def test_lookalike_a_busy_host_while_another_process_of_the_path_is_stopped():
    scene, _, engine = starving()
    pressed(scene, 97)
    scene.state(engine.detokenizer, "T")
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids) == (Code.PROCESS_STOPPED, (engine.detokenizer,))


def test_a_zombie_that_was_left_over_has_nothing_to_do_with_it():
    scene, _, engine = starving()
    pressed(scene, 97)
    left = scene.process(Process.Role.SCHEDULER, "sglang::scheduler", engine_pid=9_999)
    scene.state(left, "Z")
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids) == (Code.HOST_STARVED, (engine.scheduler,))
    # One of the window may have had what hangs.
    scene.change(left, exited=True)
    assert scene.verdict().code is Code.UNDETERMINED


def test_another_engine_that_is_stopped_and_has_nothing_has_nothing_to_do_with_it():
    scene, router, engine = starving()
    pressed(scene, 97)
    other = scene.engine()
    scene.idle(router, other, 3)
    scene.state(other.scheduler, "T")
    findings = scene.conclude().findings
    assert [each.code for each in findings] == [Code.HOST_STARVED, Code.PROCESS_STOPPED]
    assert findings[0].holder_pids == (engine.scheduler,)


def test_lookalike_a_busy_host_while_the_other_half_of_the_pair_has_ended():
    scene = Scene()
    harness, router = scene.client(), scene.router()
    prefill, decode = scene.engine("prefill"), scene.engine("decode")
    scene.owed(harness, router, 30, age_ms=5_000)
    scene.owed(router, decode, 30, age_ms=5_000)
    scene.state(decode.scheduler, "R", cpu_ms=12)
    pressed(scene, 97)
    assert scene.verdict().code is Code.HOST_STARVED
    scene.state(prefill.http, "Z")
    assert Code.HOST_STARVED not in {each.code for each in scene.conclude().findings}


def test_lookalike_quiet_streams_behind_a_quota_while_their_detokenizer_is_stopped():
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    scene.idle(scene.client(), router, 30, age_ms=2_500)
    scene.idle(router, engine, 30, age_ms=2_500)
    scene.state(engine.http, "R", cpu_ms=2)
    throttle = Throttle(cgroup="/pod", pids=(engine.http,), throttled_periods_delta=2, periods_delta=2)
    scene.host = replace(scene.host, throttles=(throttle,))
    assert scene.verdict().code is Code.HOST_STARVED
    scene.state(engine.detokenizer, "T")
    assert scene.verdict().code is Code.PROCESS_STOPPED


def test_throttled_cgroup():
    scene, _, engine = starving()
    throttle = Throttle(cgroup="/pod", pids=(engine.scheduler,), throttled_periods_delta=10, periods_delta=10)
    scene.host = replace(scene.host, throttles=(throttle,))
    assert scene.verdict().code is Code.HOST_STARVED


def test_near_miss_it_got_its_cpu():
    scene, _, engine = starving()
    pressed(scene, 97)
    scene.state(engine.scheduler, "R", cpu_ms=900)
    assert scene.verdict().code is Code.UNDETERMINED


def test_near_miss_no_pressure_and_nobody_else_is_accused():
    scene, _, engine = starving()
    pressed(scene, 5)
    scene.gauges(engine)
    assert scene.verdict().code is Code.UNDETERMINED


def test_lookalike_pressure_while_requests_move():
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    scene.streams(scene.client(), router, 30)
    scene.streams(router, engine, 30)
    scene.state(engine.scheduler, "R", cpu_ms=12)
    pressed(scene, 97)
    assert scene.verdict().code is Code.NOT_STUCK


def test_oom_kill_of_a_process_of_the_path():
    scene, _, engine = starving()
    snapshot = replace(scene.snapshot(), kernel_events=(KernelEvent(kind="oom", age_ms=4_000, pid=engine.detokenizer),))
    assert conclude(snapshot).verdict.code is Code.HOST_STARVED


def test_a_quota_holds_back_all_of_its_cgroup():
    scene, _, engine = starving()
    whole = (engine.http, engine.scheduler, engine.detokenizer)
    throttle = Throttle(cgroup="/pod", pids=whole, throttled_periods_delta=10, periods_delta=10)
    scene.host = replace(scene.host, throttles=(throttle,))
    assert scene.verdict().holder_pids == whole


def test_answers_that_have_begun_wait_too():
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    scene.idle(scene.client(), router, 30, age_ms=2_500)
    scene.idle(router, engine, 30, age_ms=2_500)
    scene.gauges(engine, running=30)
    scene.state(engine.http, "R", cpu_ms=2)
    assert scene.verdict().code is Code.UNDETERMINED
    throttle = Throttle(cgroup="/pod", pids=(engine.http,), throttled_periods_delta=2, periods_delta=2)
    scene.host = replace(scene.host, throttles=(throttle,))
    verdict = scene.verdict()
    assert (verdict.code, verdict.explains) == (Code.HOST_STARVED, 30)
    scene.metrics.clear()
    assert scene.verdict().code is Code.HOST_STARVED
    scene.state(engine.http, "S")
    assert scene.verdict().code is Code.IDLE


def test_a_quota_that_leaves_it_no_time_to_answer_even_the_agent():
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    scene.idle(scene.client(), router, 30, age_ms=2_500)
    scene.idle(router, engine, 30, age_ms=2_500)
    scene.state(engine.http, "R", cpu_ms=0)
    silent = Endpoint(
        pid=engine.http, path="/model_info", purpose="liveness", error="no answer", duration_ms=1_050, address="a:1"
    )
    snapshot = replace(scene.snapshot(), endpoints=(silent,))
    assert conclude(snapshot).verdict.code is Code.UNDETERMINED
    throttle = Throttle(cgroup="/pod", pids=(engine.http,), throttled_periods_delta=2, periods_delta=2)
    verdict = conclude(replace(snapshot, host=replace(scene.host, throttles=(throttle,)))).verdict
    assert (verdict.code, verdict.holder_pids) == (Code.HOST_STARVED, (engine.http,))
    assert verdict.summary == "The host lacks CPU for engine; 30 connections of others are open to it."
