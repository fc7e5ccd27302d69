"""Health that looks like something else, one scene each: nobody may be accused."""

from __future__ import annotations

from collections.abc import Callable

from freezeframe.judge.model import Process, Verdict
from freezeframe.judge.model.stacks import Frame
from tests.support.rank_scenes import BATCH, ROUND
from tests.support.scene import Engine, Scene

Code = Verdict.Code
Role = Process.Role


def _path(kind: str = "") -> tuple[Scene, int, int, Engine]:
    scene = Scene()
    return scene, scene.client(), scene.router(), scene.engine(kind)


def streams() -> Scene:
    scene, harness, router, engine = _path()
    scene.streams(harness, router, 30)
    scene.streams(router, engine, 30)
    scene.gauges(engine, running=30, tokens=750)
    return scene


def ramp() -> Scene:
    """The first few stream, and more come all the time."""
    scene, harness, router, engine = _path()
    scene.streams(harness, router, 6)
    scene.streams(router, engine, 6)
    scene.owed(harness, router, 9, age_ms=400)
    scene.owed(router, engine, 9, age_ms=390)
    scene.gauges(engine, running=6, waiting=9, tokens=150)
    return scene


def burst() -> Scene:
    """Thirty at once, none answered yet."""
    scene, harness, router, engine = _path()
    scene.owed(harness, router, 30, age_ms=700)
    scene.owed(router, engine, 30, age_ms=690)
    scene.gauges(engine, waiting=30)
    return scene


def queue_that_moves() -> Scene:
    scene, harness, router, engine = _path()
    scene.streams(harness, router, 8)
    scene.streams(router, engine, 8)
    scene.owed(harness, router, 22, age_ms=6_000)
    scene.owed(router, engine, 22, age_ms=6_000)
    scene.gauges(engine, running=8, waiting=22, tokens=200)
    return scene


def long_prefill() -> Scene:
    """Nothing comes out for seconds, and chunk after chunk is computed."""
    scene, harness, router, engine = _path()
    scene.owed(harness, router, 4, age_ms=9_000)
    scene.owed(router, engine, 4, age_ms=9_000)
    scene.gauges(engine, running=4, tokens=8_192)
    scene.stack(engine.scheduler, BATCH, same=False)
    scene.state(engine.scheduler, "R", cpu_ms=980)
    return scene


def slow_client() -> Scene:
    """It takes a little at a time; its share stands in queues, and less of it at the second look."""
    scene, harness, router, engine = _path()
    scene.streams(harness, router, 5)
    scene.streams(router, engine, 6)
    scene.streams(scene.client("slow.py"), router, bytes_moved=1_200)
    scene.gauges(engine, running=6, tokens=150)
    return scene


def rolling_restart() -> Scene:
    """One engine has just come up and serves nobody yet, the other one has everything."""
    scene, harness, router, engine = _path()
    scene.streams(harness, router, 30)
    scene.streams(router, engine, 30)
    fresh = scene.engine()
    for pid in (fresh.http, fresh.scheduler, fresh.detokenizer):
        scene.change(pid, age_ms=4_000)
    scene.metric(router, "smg_worker_health", 1, worker=f"http://127.0.0.1:{engine.port}")
    scene.metric(router, "smg_worker_health", 0, worker=f"http://127.0.0.1:{fresh.port}")
    scene.gauges(engine, running=30, tokens=700)
    return scene


def cold_start() -> Scene:
    """A router that waits for its first engine; clients are connected and ask nothing."""
    scene, harness, router, engine = _path()
    scene.idle(harness, router, 3, age_ms=500)
    for pid in (router, engine.http, engine.scheduler, engine.detokenizer):
        scene.change(pid, age_ms=3_000)
    scene.metric(router, "smg_worker_health", 0, worker=f"http://127.0.0.1:{engine.port}")
    return scene


def idle_hours() -> Scene:
    """Everything rests; keep-alives of the clients stay open, the engine has closed its own."""
    scene, harness, router, engine = _path()
    scene.idle(harness, router, 30, age_ms=7_200_000)
    scene.gauges(engine, age_ms=20_000)
    scene.sleeps(engine.scheduler)
    return scene


def idle_at_full_speed() -> Scene:
    """A scheduler of SGLang without --sleep-on-idle burns a core, and a gauge of long ago says that it runs some."""
    scene, harness, router, engine = _path()
    scene.idle(harness, router, 30, age_ms=600_000)
    scene.gauges(engine, running=5, age_ms=28_000)
    scene.stack(engine.scheduler, ROUND)
    scene.state(engine.scheduler, "R", cpu_ms=995)
    return scene


def health_checks() -> Scene:
    """Nothing but the router's own questions."""
    scene, harness, router, engine = _path()
    scene.idle(harness, router, 12, age_ms=40_000)
    scene.owed(router, engine, 1, age_ms=1_500)
    scene.served(router, engine)
    scene.gauges(engine, tokens=1)
    return scene


def scrapes() -> Scene:
    """A monitor asks for numbers while nobody asks for tokens."""
    scene, _, router, engine = _path()
    monitor = scene.client("monitor.py")
    scene.served(monitor, engine)
    scene.idle(monitor, router, age_ms=5_000)
    scene.gauges(engine)
    return scene


def pair_under_load() -> Scene:
    """Prefill answers, decode streams, and both have requests in their queues of disaggregation."""
    scene = Scene()
    harness, router = scene.client(), scene.router()
    prefill, decode = scene.engine("prefill"), scene.engine("decode")
    scene.streams(harness, router, 24)
    scene.owed(harness, router, 6, age_ms=300)
    scene.streams(router, decode, 24)
    scene.owed(router, decode, 6, age_ms=290)
    scene.owed(router, prefill, 6, age_ms=290)
    scene.gauges(prefill, bootstrap=2, inflight=4, tokens=90)
    scene.gauges(decode, running=24, transfer=6, tokens=600)
    return scene


def tokenizer_workers() -> Scene:
    """Two workers and two data parallel schedulers, all of them busy."""
    scene, harness, router, engine = _path()
    common = {"product": "sglang", "python": "3.11", "engine_pid": engine.http}
    scene.process(Role.DP_CONTROLLER, "sglang::data_parallel_controller", **common)
    scene.process(Role.SCHEDULER, "sglang::scheduler_DP1", rank="DP1", **common)
    scene.streams(harness, router, 20)
    for number in (1, 2):
        worker = scene.process(
            Role.TOKENIZER_WORKER, f"sglang::tokenizer_worker:{number}", port=32_000 + number, **common
        )
        scene.streams(router, worker, 10)
    scene.gauges(engine, running=20, tokens=500)
    return scene


def client_of_another_host() -> Scene:
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    scene.streams("10.0.0.9", router, 7)
    scene.owed("10.0.0.9", router, 1, age_ms=200)
    scene.streams(router, engine, 7)
    scene.owed(router, engine, 1, age_ms=190)
    scene.gauges(engine, running=8, tokens=170)
    return scene


def loop_at_work() -> Scene:
    """The event loop is in a template at one look, and answers go out."""
    scene, harness, router, engine = _path()
    scene.streams(harness, router, 30)
    scene.streams(router, engine, 30)
    frame = Frame(function="encode_chat_with_jinja", file="entrypoints/openai/serving_chat.py", line=210)
    scene.stack(engine.http, (frame,), same=False)
    scene.gauges(engine, running=30, tokens=700)
    return scene


HEALTHY: dict[str, tuple[Verdict.Code, Callable[[], Scene]]] = {
    build.__name__: (code, build)
    for code, build in (
        (Code.NOT_STUCK, streams),
        (Code.NOT_STUCK, ramp),
        (Code.NOT_STUCK, burst),
        (Code.NOT_STUCK, queue_that_moves),
        (Code.NOT_STUCK, long_prefill),
        (Code.NOT_STUCK, slow_client),
        (Code.NOT_STUCK, rolling_restart),
        (Code.IDLE, cold_start),
        (Code.IDLE, idle_hours),
        (Code.IDLE, idle_at_full_speed),
        (Code.IDLE, health_checks),
        (Code.IDLE, scrapes),
        (Code.NOT_STUCK, pair_under_load),
        (Code.NOT_STUCK, tokenizer_workers),
        (Code.NOT_STUCK, client_of_another_host),
        (Code.NOT_STUCK, loop_at_work),
    )
}
