from __future__ import annotations

from dataclasses import replace

from freezeframe.judge.model import Confidence, Verdict
from freezeframe.judge.model.stacks import Frame
from tests.support.scene import LOOP_RESTS, Engine, Scene

Code = Verdict.Code
Level = Confidence.Level
SLEEPS = (Frame(function="misbehave", file="mock_worker.py", line=109), *LOOP_RESTS)


def blocked(
    *, unread: int = 2, stack: tuple[Frame, ...] = SLEEPS, window_ms: float = 1000.0
) -> tuple[Scene, int, Engine]:
    scene = Scene(window_ms=window_ms)
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 17, age_ms=4_000)
    scene.owed(router, engine, 1, age_ms=4_000)
    scene.unread(router, engine, unread, age_ms=4_000)
    scene.unaccepted(router, engine, 14, age_ms=4_000)
    scene.stack(engine.http, stack)
    return scene, router, engine


def test_sockets_and_stack_agree():
    scene, _, engine = blocked()
    verdict = scene.verdict()
    assert (verdict.code, verdict.hop, verdict.holder_pids) == (Code.ENGINE_HTTP_BLOCKED, "engine", (engine.http,))
    assert (verdict.confidence, verdict.explains) == (Level.HIGH, 17)
    assert "is blocked in misbehave (mock_worker.py:109); 17 requests of harness.py" in verdict.summary


def test_unread_requests_alone():
    scene, *_ = blocked()
    verdict = scene.lose("snapshot_python_stacks").verdict()
    assert (verdict.code, verdict.confidence) == (Code.ENGINE_HTTP_BLOCKED, Level.MEDIUM)


def test_lookalike_its_loop_was_ready_to_run_and_got_next_to_no_cpu():
    for delay_ms, cpu_ms, code in (
        (700.0, 150.0, Code.UNDETERMINED),
        (500.0, 150.0, Code.ENGINE_HTTP_BLOCKED),
        (700.0, 250.0, Code.ENGINE_HTTP_BLOCKED),
    ):
        scene, _, engine = blocked()
        main = scene.processes[engine.http].threads[0]
        scene.change(engine.http, threads=(replace(main, run_delay_ms_delta=delay_ms, cpu_ms_delta=cpu_ms),))
        assert scene.verdict().code is code, (delay_ms, cpu_ms)


def test_stack_alone():
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    scene.owed(scene.client(), router, 1, age_ms=4_000)
    scene.owed(router, engine, 1, age_ms=4_000)
    scene.stack(engine.http, SLEEPS)
    assert scene.verdict().code is Code.ENGINE_HTTP_BLOCKED
    scene.lose("snapshot_python_stacks")
    assert scene.verdict().code is Code.UNDETERMINED


def test_one_look():
    assert blocked(window_ms=0)[0].verdict().code is Code.ENGINE_HTTP_BLOCKED


def test_near_miss_the_stack_moved_and_nothing_is_unread():
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    scene.owed(scene.client(), router, 3, age_ms=4_000)
    scene.owed(router, engine, 3, age_ms=4_000)
    scene.stack(engine.http, SLEEPS, same=False)
    assert scene.verdict().code is Code.UNDETERMINED


def test_lookalike_one_body_unread_while_others_are_served():
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.streams(harness, router, 8)
    scene.streams(router, engine, 8)
    scene.unread(router, engine, 1, age_ms=4_000)
    assert scene.verdict().code is Code.NOT_STUCK


def test_lookalike_a_tokenizer_caught_in_its_work():
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 8, age_ms=300)
    scene.owed(router, engine, 8, age_ms=300)
    scene.stack(engine.http, SLEEPS)
    assert scene.verdict().code is Code.NOT_STUCK


def streaming_engine_that_blocks() -> tuple[Scene, Engine]:
    """All answers have begun: vLLM sends their headers at once."""
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine(product="vllm")
    scene.idle(harness, router, 30, age_ms=14_000)
    scene.idle(router, engine, 30, age_ms=14_000)
    return scene, engine


def test_answers_that_have_begun_wait_too():
    scene, engine = streaming_engine_that_blocks()
    assert scene.verdict().code is Code.UNDETERMINED
    scene.stack(engine.http, SLEEPS)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids) == (Code.ENGINE_HTTP_BLOCKED, (engine.http,))
    assert (verdict.confidence, verdict.explains) == (Level.MEDIUM, 30)
    assert "30 requests of harness.py" in verdict.summary


def test_near_miss_idle_connections_of_a_loop_that_rests():
    scene, engine = streaming_engine_that_blocks()
    scene.stack(engine.http, LOOP_RESTS)
    assert scene.verdict().code is Code.UNDETERMINED
