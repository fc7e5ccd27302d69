"""Wedges that people reported of SGLang, vLLM and their routers, one scene each, with what a snapshot has to say of it.

Each is written from the facts of its report, as an agent would have seen them. Numbers without a repository are those
of sgl-project/sglang.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from freezeframe.judge.model import Gpu, KernelEvent, Process, Verdict
from freezeframe.judge.model.host import GpuProcess
from freezeframe.judge.model.stacks import Frame
from tests.support.pair_scenes import both_have_them
from tests.support.rank_scenes import ADMISSION, BROADCAST, PREFETCH, ROUND, TRANSFER, ranked, ranks_of, switches
from tests.support.scene import LOOP_RESTS, Engine, Scene

Code = Verdict.Code
Role = Process.Role

SYNCHRONISE = (
    Frame(function="Event.synchronize", file="/venv/torch/cuda/streams.py", line=231),
    Frame(function="Scheduler.process_batch_result_decode", file="/venv/sglang/srt/managers/scheduler.py", line=40),
    Frame(function="Scheduler.event_loop_overlap", file="/venv/sglang/srt/managers/scheduler.py", line=1200),
)


@dataclass(frozen=True, kw_only=True)
class Told:
    """A scene, and who holds the requests in it; no holders where the code names none."""

    scene: Scene
    code: Verdict.Code
    holders: tuple[int, ...]


def _served(age_ms: float, *, count: int = 30) -> tuple[Scene, int, int, Engine]:
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, count, age_ms=age_ms)
    scene.owed(router, engine, count, age_ms=age_ms)
    return scene, harness, router, engine


def reply_lost_among_tokenizer_workers() -> Told:
    """33858: gauges 0, everything alive, one of two tokenizer workers owes what the schedulers know nothing of."""
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    common = {"product": "sglang", "python": "3.11", "engine_pid": engine.http}
    worker, twin = (
        scene.process(Role.TOKENIZER_WORKER, f"sglang::tokenizer_worker:{n}", port=32_000 + n, **common) for n in (1, 2)
    )
    for pid in (worker, twin):
        scene.stack(pid, LOOP_RESTS)
    scene.owed(harness, router, 12, age_ms=20_000)
    scene.owed(router, worker, 12, age_ms=20_000)
    scene.gauges(engine, age_ms=4_000)
    scene.sleeps(engine.scheduler)
    return Told(scene=scene, code=Code.ENGINE_HANDOFF, holders=(worker,))


def router_keeps_the_other_leg() -> Told:
    """29482: decode refused, so that its legs are gone; the prefill legs wait for a partner that never comes."""
    scene = Scene()
    harness, router = scene.client(), scene.router()
    prefill, decode = scene.engine("prefill"), scene.engine("decode")
    scene.owed(harness, router, 30, age_ms=90_000)
    scene.owed(router, prefill, 30, age_ms=90_000)
    scene.gauges(prefill, bootstrap=30, age_ms=120_000)
    scene.gauges(decode, age_ms=12_000)
    scene.sleeps(decode.scheduler)
    return Told(scene=scene, code=Code.ROUTER_DUAL_LEG, holders=(router,))


def pooled_connections_that_the_engine_closed() -> Told:
    """20851, smg 2162: requests sent on connections that the engine had closed stand in the pool."""
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 6, age_ms=8_000)
    scene.answered_and_closed(router, engine, 6, age_ms=6_000)
    scene.gauges(engine)
    return Told(scene=scene, code=Code.ROUTER_LOST_REPLY, holders=(router,))


def no_worker_that_the_router_would_take() -> Told:
    """12355, 22835: every breaker open, each request refused at once, the engines idle."""
    scene = Scene()
    harness, router = scene.client(), scene.router()
    scene.idle(harness, router, 30, age_ms=120)
    for _ in range(2):
        engine = scene.engine()
        scene.gauges(engine)
        scene.metric(router, "smg_worker_cb_state", 1, worker=f"http://127.0.0.1:{engine.port}")
    scene.log(router, "router_no_pair", 140, "no worker that may be used")
    return Told(scene=scene, code=Code.ROUTER_NO_WORKERS, holders=(router,))


def limiter_with_few_tokens() -> Told:
    """21163: the limiter lets a few through, the others stand in its queue."""
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.owed(harness, router, 30, age_ms=8_000)
    scene.owed(router, engine, 2, age_ms=8_000)
    scene.gauges(engine, running=2)
    scene.metric(router, "smg_admission_queue_depth", 28)
    return Told(scene=scene, code=Code.ROUTER_QUEUE, holders=(router,))


def router_starved_by_its_own_work() -> Told:
    """29764: its runtime is busy with tokenizing, nobody accepts or reads."""
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine()
    scene.unread(harness, router, 22, age_ms=6_000)
    scene.unaccepted(harness, router, 8, age_ms=5_000)
    scene.state(router, "R", cpu_ms=950)
    scene.gauges(engine)
    return Told(scene=scene, code=Code.ROUTER_NOT_ACCEPTING, holders=(router,))


def streams_of_clients_that_left() -> Told:
    """vllm-project/production-stack 634: the cancel was not passed on."""
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    scene.owed(router, engine, 12, age_ms=120_000)
    scene.gauges(engine, running=12, age_ms=1_000)
    return Told(scene=scene, code=Code.ZOMBIE_UPSTREAM, holders=(router,))


def bootstrap_port_that_nobody_opened() -> Told:
    """ai-dynamo/dynamo 4855: both legs are there and the handshake never happens."""
    scene, prefill, decode = both_have_them({"bootstrap": 30}, {"prealloc": 30})
    return Told(scene=scene, code=Code.PD_BOOTSTRAP, holders=(prefill.scheduler, decode.scheduler))


def transfer_whose_end_was_missed() -> Told:
    """32267, 36108: keys and values went over, and the decode side was never told."""
    scene, prefill, decode = both_have_them({"inflight": 30}, {"transfer": 30})
    return Told(scene=scene, code=Code.PD_TRANSFER, holders=(prefill.scheduler, decode.scheduler))


def prefetch_that_one_rank_ends() -> Told:
    """30760, 22607: one rank in the all_reduce of a prefetch, its peers in the broadcast of requests."""
    scene, engine = ranked(BROADCAST, PREFETCH, BROADCAST, BROADCAST)
    scene.gauges(engine)
    return Told(scene=scene, code=Code.RANKS_DIVERGED, holders=(ranks_of(scene)[1],))


def transfer_that_one_rank_polls() -> Told:
    """38273: the ranks of a decode engine poll for their transfers in different rounds."""
    scene, engine = ranked(TRANSFER, TRANSFER, TRANSFER, BROADCAST)
    scene.gauges(engine)
    return Told(scene=scene, code=Code.RANKS_DIVERGED, holders=(ranks_of(scene)[3],))


def kernel_that_spins() -> Told:
    """33549, vllm 41725: every rank waits for its GPU, which is busy at low power."""
    scene, engine = ranked(SYNCHRONISE, SYNCHRONISE)
    scene.gauges(engine, running=30)
    ranks = ranks_of(scene)
    scene.gpus = tuple(
        Gpu(
            index=index, processes=(GpuProcess(pid=pid),), utilization_percent=97.0, power_watts=180.0,
            power_limit_watts=700.0, sm_clock_mhz=1980.0,
        )
        for index, pid in enumerate(ranks)
    )  # fmt: skip
    return Told(scene=scene, code=Code.GPU_SPIN, holders=tuple(ranks))


def gpu_that_fell_off_the_bus() -> Told:
    scene, _, _, engine = _served(5_000)
    bus = "00000000:04:00.0"
    scene.gpus = (Gpu(bus_id=bus, processes=(GpuProcess(pid=engine.scheduler),)),)
    event = KernelEvent(kind="xid", code=79, device="0000:04:00", age_ms=60_000.0, fatal=True, meaning="fell off")
    scene.kernel_events = (event,)
    return Told(scene=scene, code=Code.GPU_FAULT, holders=(engine.scheduler,))


def admission_that_is_never_true_again() -> Told:
    """22518, vllm 53130: requests wait, none runs, the cache is free and the scheduler rests between its rounds."""
    scene, _, _, engine = _served(41_000)
    scene.gauges(engine, waiting=30, age_ms=800)
    return Told(scene=scene, code=Code.SCHEDULER_QUEUE, holders=(engine.scheduler,))


def scheduler_that_goes_round() -> Told:
    """30314, 28530, 39271: R at 100 % in its admission, GPU idle, HTTP fine."""
    scene, engine = ranked(ADMISSION)
    scene.state(engine.scheduler, "R", cpu_ms=990)
    switches(scene, engine.scheduler, 0)
    scene.gauges(engine, waiting=30)
    return Told(scene=scene, code=Code.SCHEDULER_LIVELOCK, holders=(engine.scheduler,))


def loop_that_renders() -> Told:
    """30770, vllm 24910: the event loop is in a template, what came since is unread."""
    scene, _, router, engine = _served(4_000, count=20)
    scene.unread(router, engine, 10, age_ms=3_000)
    frame = Frame(function="encode_chat_with_jinja", file="entrypoints/openai/serving_chat.py", line=210)
    scene.stack(engine.http, (frame, *LOOP_RESTS))
    scene.state(engine.http, "R", cpu_ms=980)
    scene.gauges(engine)
    return Told(scene=scene, code=Code.ENGINE_HTTP_BLOCKED, holders=(engine.http,))


def detokenizer_of_long_answers() -> Told:
    """34740: queues 0, the GPU busy, and the detokenizer at 100 % with nothing coming out."""
    scene, _, _, engine = _served(20_000, count=8)
    scene.gauges(engine, running=8.0, tokens=900.0)
    scene.state(engine.detokenizer, "R", cpu_ms=990)
    return Told(scene=scene, code=Code.DETOKENIZER, holders=(engine.detokenizer,))


def core_that_died() -> Told:
    """vllm 39863: the core is gone, /version answers."""
    scene = Scene()
    harness, router, engine = scene.client(), scene.router(), scene.engine(product="vllm")
    scene.owed(harness, router, 30, age_ms=60_000)
    scene.owed(router, engine, 30, age_ms=60_000)
    scene.change(engine.scheduler, title="VLLM::EngineCore")
    scene.state(engine.scheduler, "Z")
    return Told(scene=scene, code=Code.PROCESS_DEAD, holders=(engine.scheduler,))


def core_that_was_frozen() -> Told:
    """vllm 36451: the core stands still, and /health says 200."""
    scene, _, _, engine = _served(60_000)
    scene.gauges(engine, running=30)
    scene.state(engine.scheduler, "T")
    return Told(scene=scene, code=Code.PROCESS_STOPPED, holders=(engine.scheduler,))


def proxy_that_kept_a_frozen_engine() -> Told:
    """azrtydxb/Fastllm-proxy 19: the proxy goes on waiting for an engine in a frozen cgroup."""
    scene = Scene()
    harness, engine = scene.client(), scene.engine()
    proxy = scene.process(Role.PROXY, "envoy", port=8080, product="envoy", exe="/usr/bin/envoy")
    scene.owed(harness, proxy, 9, age_ms=600_000)
    scene.owed(proxy, engine, 9, age_ms=600_000)
    for pid in (engine.http, engine.scheduler, engine.detokenizer):
        scene.change(pid, frozen=True, cgroup="/kubepods/pod7/engine")
    return Told(scene=scene, code=Code.PROCESS_STOPPED, holders=(engine.http, engine.scheduler, engine.detokenizer))


def proxy_that_keeps_them() -> Told:
    scene = Scene()
    harness, router = scene.client(), scene.router()
    proxy = scene.process(Role.PROXY, "nginx: worker process", port=8080, product="nginx", exe="/usr/sbin/nginx")
    scene.owed(harness, proxy, 30, age_ms=5_000)
    scene.idle(scene.client("other.py"), router)
    return Told(scene=scene, code=Code.PROXY_HOLDS, holders=(proxy,))


def path_that_loses_packets() -> Told:
    """An engine on another host does not acknowledge what was sent to it."""
    scene = Scene()
    router, engine = scene.router(), scene.engine()
    scene.owed(scene.client(), router, 4, age_ms=30_000)
    scene.owed(router, engine, 4, age_ms=30_000)
    lost = {"unacked": 3, "retransmits_now": 4, "last_ack_age_ms": 12_000.0, "retransmits_delta": 1}
    here = [socket for socket in scene.sockets if socket.pid != engine.http]
    scene.sockets = [
        replace(socket, peer_pid=None, remote="10.0.0.7:30000", **lost) if socket.peer_pid == engine.http else socket
        for socket in here
    ]
    for pid in (engine.http, engine.scheduler, engine.detokenizer):
        del scene.processes[pid]
    return Told(scene=scene, code=Code.NETWORK_STALLED, holders=())


def scheduler_of_one_data_parallel_rank() -> Told:
    """One of two schedulers behind a data parallel controller is stopped: its share of the requests waits."""
    scene, _, _, engine = _served(30_000)
    common = {"product": "sglang", "python": "3.11", "engine_pid": engine.http}
    scene.process(Role.DP_CONTROLLER, "sglang::data_parallel_controller", **common)
    other = scene.process(Role.SCHEDULER, "sglang::scheduler_DP1", rank="DP1", **common)
    scene.change(engine.scheduler, rank="DP0")
    scene.stack(other, ROUND)
    scene.gauges(engine, running=4, age_ms=60_000)
    scene.state(other, "T")
    return Told(scene=scene, code=Code.PROCESS_STOPPED, holders=(other,))


FIELD: dict[str, Callable[[], Told]] = {
    build.__name__: build
    for build in (
        reply_lost_among_tokenizer_workers,
        router_keeps_the_other_leg,
        pooled_connections_that_the_engine_closed,
        no_worker_that_the_router_would_take,
        limiter_with_few_tokens,
        router_starved_by_its_own_work,
        streams_of_clients_that_left,
        bootstrap_port_that_nobody_opened,
        transfer_whose_end_was_missed,
        prefetch_that_one_rank_ends,
        transfer_that_one_rank_polls,
        kernel_that_spins,
        gpu_that_fell_off_the_bus,
        admission_that_is_never_true_again,
        scheduler_that_goes_round,
        loop_that_renders,
        detokenizer_of_long_answers,
        core_that_died,
        core_that_was_frozen,
        proxy_that_kept_a_frozen_engine,
        proxy_that_keeps_them,
        path_that_loses_packets,
        scheduler_of_one_data_parallel_rank,
    )
}
