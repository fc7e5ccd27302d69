"""One scene per verdict that accuses, each with what it has to prove."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from freezeframe.judge.model import Pressure, Process, Verdict
from freezeframe.judge.model.stacks import Frame
from tests.support.pair_scenes import both_have_them
from tests.support.scene import LOOP_RESTS, Engine, Scene

Code = Verdict.Code
Builder = Callable[[], Scene]


def _pair(age_ms: float) -> tuple[Scene, int, int, Engine, Engine]:
    scene = Scene()
    harness, router = scene.client(), scene.router()
    prefill, decode = scene.engine("prefill"), scene.engine("decode")
    scene.owed(harness, router, 30, age_ms=age_ms)
    return scene, harness, router, prefill, decode


def _regular(age_ms: float) -> tuple[Scene, int, int, Engine]:
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 30, age_ms=age_ms)
    scene.owed(router, engine, 30, age_ms=age_ms)
    return scene, harness, router, engine


def dual_leg() -> Scene:
    scene, _, router, prefill, decode = _pair(3_000)
    scene.owed(router, prefill, 30, age_ms=3_000)
    scene.idle(router, decode, 30, age_ms=2_900)
    scene.gauges(prefill, bootstrap=30)
    scene.gauges(decode)
    return scene


def dual_leg_with_a_stray() -> Scene:
    scene, _, router, prefill, decode = _pair(41_000)
    stray = scene.client("stray.py")
    scene.owed(router, prefill, 30, age_ms=41_000)
    scene.streams(stray, decode)
    scene.gauges(prefill, bootstrap=30)
    scene.gauges(decode, running=1, tokens=50)
    return scene


def silent_engine() -> Scene:
    scene, _, _, engine = _regular(3_000)
    scene.gauges(engine)
    return scene


def silent_decode() -> Scene:
    scene, _, router, prefill, decode = _pair(3_000)
    scene.owed(router, prefill, 30, age_ms=3_000)
    scene.owed(router, decode, 30, age_ms=3_000)
    scene.gauges(prefill, bootstrap=30)
    scene.wakes(prefill.scheduler, 45)
    scene.gauges(decode)
    return scene


def blocked_loop() -> Scene:
    scene, _, router, engine = _regular(3_000)
    scene.unread(router, engine, 2, age_ms=3_000)
    scene.unaccepted(router, engine, 14, age_ms=3_000)
    scene.stack(engine.http, (Frame(function="encode", file="tokenizer.py", line=7), *LOOP_RESTS))
    scene.gauges(engine)
    return scene


def blocked_loop_by_its_stack() -> Scene:
    scene, _, _, engine = _regular(3_000)
    scene.stack(engine.http, (Frame(function="encode", file="tokenizer.py", line=7), *LOOP_RESTS))
    scene.gauges(engine)
    return scene


def full_accept_queue() -> Scene:
    scene, _, router, prefill, decode = _pair(3_000)
    scene.owed(router, prefill, 30, age_ms=3_000)
    scene.unaccepted(router, decode, 30, age_ms=3_000)
    scene.gauges(prefill, bootstrap=30)
    scene.gauges(decode)
    return scene


def queue_that_stands() -> Scene:
    scene, _, _, engine = _regular(3_000)
    scene.gauges(engine, waiting=30)
    return scene


def router_that_queues() -> Scene:
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 30, age_ms=8_000)
    scene.owed(router, engine, 4, age_ms=8_000)
    scene.gauges(engine, running=4)
    return scene


def router_at_its_limit() -> Scene:
    scene = router_that_queues()
    (router,) = [p.pid for p in scene.processes.values() if p.title == "sglang::router"]
    scene.metric(router, "smg_admission_queue_depth", 26)
    return scene


def stalled_batch(kind: str, function: str) -> Scene:
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine(kind)
    if kind == "decode":
        scene.idle(harness, router, 30, age_ms=12_000)
        scene.idle(router, engine, 30, age_ms=12_000)
    else:
        scene.owed(harness, router, 30, age_ms=12_000)
        scene.owed(router, engine, 30, age_ms=12_000)
    scene.gauges(engine)
    frames = tuple(Frame(function=f, file="managers/scheduler.py", line=240) for f in (function, "run_batch"))
    scene.stack(engine.scheduler, frames)
    return scene


def stalled_decode() -> Scene:
    return stalled_batch("decode", "forward_decode")


def stalled_prefill() -> Scene:
    return stalled_batch("", "forward_extend")


def handshake_that_stands() -> Scene:
    return both_have_them({"bootstrap": 30}, {"prealloc": 30})[0]


def transfer_that_stands() -> Scene:
    return both_have_them({"inflight": 30}, {"transfer": 30})[0]


def router_that_does_not_accept() -> Scene:
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.unaccepted(harness, router, 5, age_ms=4_000)
    scene.unread(harness, router, 25, age_ms=4_000)
    scene.gauges(engine)
    return scene


def router_without_workers() -> Scene:
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.idle(harness, router, 30)
    scene.metric(router, "smg_worker_health", 0, worker=f"http://127.0.0.1:{engine.port}")
    return scene


def stopped_router() -> Scene:
    scene, _, router, engine = _regular(5_000)
    scene.unaccepted(scene.client("late.py"), router, 5, age_ms=4_000)
    scene.gauges(engine)
    scene.state(router, "T")
    return scene


def stopped_engine() -> Scene:
    scene, _, router, engine = _regular(5_000)
    scene.unread(router, engine, 2, age_ms=5_000)
    scene.unaccepted(router, engine, 13, age_ms=5_000)
    scene.gauges(engine)
    scene.state(engine.http, "T")
    return scene


def stopped_scheduler() -> Scene:
    scene, _, _, engine = _regular(5_000)
    scene.gauges(engine)
    scene.state(engine.scheduler, "T")
    return scene


def dead_scheduler() -> Scene:
    scene, _, _, engine = _regular(5_000)
    scene.gauges(engine)
    scene.state(engine.scheduler, "Z")
    return scene


def scheduler_in_d() -> Scene:
    scene, _, _, engine = _regular(5_000)
    scene.gauges(engine)
    scene.state(engine.scheduler, "D")
    return scene


def starved_scheduler() -> Scene:
    scene, _, _, engine = _regular(5_000)
    scene.gauges(engine)
    scene.state(engine.scheduler, "R", cpu_ms=10)
    scene.host = replace(scene.host, pressure=(Pressure(resource="cpu", some_window=99),))
    return scene


def client_that_does_not_read() -> Scene:
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.untaken(harness, router, 4, age_ms=6_000)
    scene.streams(router, engine, 4)
    scene.gauges(engine, running=4, tokens=200)
    return scene


def zombies() -> Scene:
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    scene.owed(router, engine, 30, age_ms=60_000)
    scene.gauges(engine, running=30)
    return scene


WEDGED: dict[str, tuple[Verdict.Code, Builder]] = {
    build.__name__: (code, build)
    for code, build in (
        (Code.ROUTER_DUAL_LEG, dual_leg),
        (Code.ROUTER_DUAL_LEG, dual_leg_with_a_stray),
        (Code.ENGINE_HANDOFF, silent_engine),
        (Code.ENGINE_HANDOFF, silent_decode),
        (Code.ENGINE_HTTP_BLOCKED, blocked_loop),
        (Code.ENGINE_HTTP_BLOCKED, blocked_loop_by_its_stack),
        (Code.ENGINE_NOT_ACCEPTING, full_accept_queue),
        (Code.SCHEDULER_QUEUE, queue_that_stands),
        (Code.ROUTER_HOLDS, router_that_queues),
        (Code.ROUTER_QUEUE, router_at_its_limit),
        (Code.DECODE_STALLED, stalled_decode),
        (Code.PREFILL_STALLED, stalled_prefill),
        (Code.PD_BOOTSTRAP, handshake_that_stands),
        (Code.PD_TRANSFER, transfer_that_stands),
        (Code.ROUTER_NOT_ACCEPTING, router_that_does_not_accept),
        (Code.ROUTER_NO_WORKERS, router_without_workers),
        (Code.PROCESS_STOPPED, stopped_router),
        (Code.PROCESS_STOPPED, stopped_engine),
        (Code.PROCESS_STOPPED, stopped_scheduler),
        (Code.PROCESS_DEAD, dead_scheduler),
        (Code.PROCESS_UNINTERRUPTIBLE, scheduler_in_d),
        (Code.HOST_STARVED, starved_scheduler),
        (Code.CLIENT_NOT_READING, client_that_does_not_read),
        (Code.ZOMBIE_UPSTREAM, zombies),
    )
}

# Who holds the requests in each: roles, of a pair with the kind in front.
HOLDERS: dict[str, tuple[str, ...]] = {
    "dual_leg": ("router",),
    "dual_leg_with_a_stray": ("router",),
    "silent_engine": ("engine_http",),
    "silent_decode": ("decode engine_http",),
    "blocked_loop": ("engine_http",),
    "blocked_loop_by_its_stack": ("engine_http",),
    "full_accept_queue": ("decode engine_http",),
    "queue_that_stands": ("scheduler",),
    "router_that_queues": ("router",),
    "router_at_its_limit": ("router",),
    "stalled_decode": ("scheduler",),
    "stalled_prefill": ("scheduler",),
    "handshake_that_stands": ("prefill scheduler", "decode scheduler"),
    "transfer_that_stands": ("prefill scheduler", "decode scheduler"),
    "router_that_does_not_accept": ("router",),
    "router_without_workers": ("router",),
    "stopped_router": ("router",),
    "stopped_engine": ("engine_http",),
    "stopped_scheduler": ("scheduler",),
    "dead_scheduler": ("scheduler",),
    "scheduler_in_d": ("scheduler",),
    "starved_scheduler": ("scheduler",),
    "client_that_does_not_read": ("client",),
    "zombies": ("router",),
}


def holders_of(name: str, processes: Iterable[Process]) -> tuple[int, ...]:
    """Pids of those in the scene of this name."""
    found = []
    for holder in HOLDERS[name]:
        kind, _, role = holder.rpartition(" ")
        of_role = [p for p in processes if p.role.name.lower() == role]
        found += [p.pid for p in of_role if not kind or p.disaggregation == kind]
    return tuple(sorted(found))
