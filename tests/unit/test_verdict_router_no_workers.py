from __future__ import annotations

from freezeframe.judge.model import Confidence, Verdict
from tests.support.scene import Engine, Scene

Code = Verdict.Code
Level = Confidence.Level


def routed() -> tuple[Scene, int, list[str]]:
    scene = Scene()
    router = scene.router()
    engines = [scene.engine(), scene.engine()]
    return scene, router, [url(engine) for engine in engines]


def url(engine: Engine) -> str:
    return f"http://127.0.0.1:{engine.port}"


def test_all_unhealthy():
    scene, router, workers = routed()
    for worker in workers:
        scene.metric(router, "smg_worker_health", 0, worker=worker)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids, verdict.confidence) == (Code.ROUTER_NO_WORKERS, (router,), Level.MEDIUM)


def test_open_breakers_with_refusals():
    scene, router, workers = routed()
    for worker in workers:
        scene.metric(router, "smg_worker_health", 1, worker=worker)
        scene.metric(router, "smg_worker_cb_state", 1, worker=worker)
    scene.metric(router, "smg_worker_retries_exhausted_total", 56, delta=3)
    verdict = scene.verdict()
    assert (verdict.code, verdict.confidence) == (Code.ROUTER_NO_WORKERS, Level.HIGH)
    assert "behind an open circuit breaker" in verdict.summary


def test_near_miss_one_of_two_out():
    scene, router, workers = routed()
    scene.metric(router, "smg_worker_health", 0, worker=workers[0])
    scene.metric(router, "smg_worker_health", 1, worker=workers[1])
    assert scene.verdict().code is Code.IDLE


def test_near_miss_breakers_open_and_nobody_refused():
    scene, router, workers = routed()
    for worker in workers:
        scene.metric(router, "smg_worker_cb_state", 1, worker=worker)
    assert scene.verdict().code is Code.IDLE


def test_all_prefill_workers_out():
    scene = Scene()
    router, prefill, decode = scene.router(), scene.engine("prefill"), scene.engine("decode")
    scene.metric(router, "smg_worker_health", 0, worker=url(prefill))
    scene.metric(router, "smg_worker_health", 1, worker=url(decode))
    verdict = scene.verdict()
    assert verdict.code is Code.ROUTER_NO_WORKERS
    assert "no usable prefill worker" in verdict.summary


def test_lookalike_no_worker_registered_yet():
    scene = Scene()
    scene.router()
    assert scene.verdict().code is Code.IDLE


def test_a_young_router_whose_breakers_opened():
    scene, router, workers = routed()
    scene.change(router, age_ms=4_000)
    for worker in workers:
        scene.metric(router, "smg_worker_cb_state", 1, worker=worker)
    scene.metric(router, "smg_worker_retries_exhausted_total", 56, delta=3)
    assert scene.verdict().code is Code.ROUTER_NO_WORKERS


def test_lookalike_a_young_router_that_has_not_seen_its_workers_healthy_yet():
    scene, router, workers = routed()
    scene.change(router, age_ms=4_000)
    for worker in workers:
        scene.metric(router, "smg_worker_health", 0, worker=worker)
    assert scene.verdict().code is Code.IDLE
