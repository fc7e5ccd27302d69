"""A disaggregated pair with the requests on both sides, made by hand."""

from __future__ import annotations

from tests.support.scene import Engine, Scene


def both_have_them(
    prefill_gauges: dict[str, float],
    decode_gauges: dict[str, float],
    *,
    age_ms: float = 41_000,
    gauge_age_ms: float | None = 800.0,
    decode_owes: bool = True,
    window_ms: float = 1000.0,
) -> tuple[Scene, Engine, Engine]:
    """30 requests that the router has passed on to both; both schedulers turn."""
    scene = Scene(window_ms=window_ms)
    harness, router = scene.client(), scene.router()
    prefill, decode = scene.engine("prefill"), scene.engine("decode")
    scene.owed(harness, router, 30, age_ms=age_ms)
    scene.owed(router, prefill, 30, age_ms=age_ms)
    if decode_owes:
        scene.owed(router, decode, 30, age_ms=age_ms)
    for engine, gauges in ((prefill, prefill_gauges), (decode, decode_gauges)):
        scene.gauges(engine, age_ms=gauge_age_ms, **gauges)
        scene.wakes(engine.scheduler, 50)
    return scene, prefill, decode
