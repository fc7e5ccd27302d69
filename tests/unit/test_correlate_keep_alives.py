from __future__ import annotations

from freezeframe.judge.correlate import correlate
from freezeframe.judge.model import Verdict
from tests.support.scene import Scene


def scene_of(client_bytes: list[float], engine_bytes: list[float], window_ms: float = 1_000) -> Scene:
    scene = Scene(window_ms=window_ms)
    client, router, engine = scene.client(), scene.router(product="smg"), scene.engine()
    for moved in client_bytes:
        scene.streams(client, router, bytes_moved=moved)
    for moved in engine_bytes:
        scene.streams(router, engine, bytes_moved=moved)
    return scene


def kept_alive(scene: Scene) -> list[float | None]:
    return [c.bytes_down_delta for c in correlate([scene.snapshot()]).connections if c.kept_alive]


def test_a_few_bytes_that_no_engine_sent_are_no_answer() -> None:
    scene = scene_of([13, 13], [])
    assert kept_alive(scene) == [13, 13]
    assert scene.verdict().code is not Verdict.Code.NOT_STUCK


def test_bytes_that_an_engine_sent_are_an_answer_however_few() -> None:
    assert kept_alive(scene_of([13], [13])) == []


def test_beside_answers_in_progress_the_smallest_are_told_apart() -> None:
    assert kept_alive(scene_of([13, 9_000, 13, 64], [9_000])) == [13, 13, 64]


def test_more_bytes_than_keep_alives_have_are_an_answer() -> None:
    assert kept_alive(scene_of([65], [])) == []


def test_in_a_long_window_there_may_be_several() -> None:
    assert kept_alive(scene_of([9 * 13], [], window_ms=120_000)) == [9 * 13]
    assert kept_alive(scene_of([65], [], window_ms=14_000)) == []


def test_an_engine_is_no_forwarder() -> None:
    scene = Scene()
    scene.streams(scene.client(), scene.engine(), bytes_moved=13)
    assert kept_alive(scene) == []
