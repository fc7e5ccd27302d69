from __future__ import annotations

from freezeframe.judge.model import Confidence, Process, Verdict
from tests.support.scene import Scene

Code = Verdict.Code
Level = Confidence.Level
PROXY = Process.Role.PROXY


def proxied() -> tuple[Scene, int, int, int]:
    scene = Scene()
    harness, router = scene.client(), scene.router()
    proxy = scene.process(PROXY, "nginx: worker process", port=8080, product="nginx", exe="/usr/sbin/nginx")
    return scene, harness, proxy, router


def test_read_by_a_proxy_and_passed_on_to_nobody() -> None:
    scene, harness, proxy, router = proxied()
    scene.owed(harness, proxy, 30, age_ms=5_000)
    scene.idle(scene.client("other.py"), router)
    verdict = scene.verdict()
    assert (verdict.code, verdict.hop, verdict.holder_pids, verdict.confidence, verdict.explains) == (
        Code.PROXY_HOLDS,
        "proxy",
        (proxy,),
        Level.HIGH,
        30,
    )


def test_some_are_under_way() -> None:
    scene, harness, proxy, router = proxied()
    scene.owed(harness, proxy, 30, age_ms=5_000)
    scene.owed(proxy, router, 4, age_ms=5_000)
    found = [each for each in scene.conclude().findings if each.code is Code.PROXY_HOLDS]
    assert [(each.explains, each.confidence) for each in found] == [(26, Level.MEDIUM)]


def test_near_miss_all_are_under_way() -> None:
    scene, harness, proxy, router = proxied()
    scene.owed(harness, proxy, 30, age_ms=5_000)
    scene.owed(proxy, router, 30, age_ms=5_000)
    assert Code.PROXY_HOLDS not in {each.code for each in scene.conclude().findings}


def test_lookalike_another_worker_of_the_proxy_has_them_upstream() -> None:
    scene, harness, proxy, router = proxied()
    other = scene.process(PROXY, "nginx: worker process", product="nginx", exe="/usr/sbin/nginx")
    scene.owed(harness, proxy, 30, age_ms=5_000)
    scene.owed(other, router, 30, age_ms=5_000)
    assert Code.PROXY_HOLDS not in {each.code for each in scene.conclude().findings}


def test_a_stopped_proxy_is_stopped() -> None:
    scene, harness, proxy, _ = proxied()
    scene.owed(harness, proxy, 30, age_ms=5_000)
    scene.state(proxy, "T")
    assert scene.verdict().code is Code.PROCESS_STOPPED


def test_lookalike_ray_serves_proxy_has_one_connection_for_all() -> None:
    scene, harness, *_ = proxied()
    ray = scene.process(PROXY, "ray::ProxyActor", port=8000, product="ray-serve", exe="/usr/bin/python3.11")
    scene.owed(harness, ray, 30, age_ms=5_000)
    assert Code.PROXY_HOLDS not in {each.code for each in scene.conclude().findings}
