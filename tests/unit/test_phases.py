from __future__ import annotations

import pytest

from freezeframe.judge.correlate.phases import Standing, standing
from freezeframe.judge.model import Frame

C10D = "torch/distributed/distributed_c10d.py"
SCHEDULER = "sglang/srt/managers/scheduler.py"
POLICY = "sglang/srt/managers/schedule_policy.py"
SHM = "vllm/distributed/device_communicators/shm_broadcast.py"
EXECUTOR = "vllm/v1/executor/multiproc_executor.py"
LOOP = ("Scheduler.event_loop_normal", SCHEDULER)
WRAPPER = ("wrapper", "torch/distributed/c10d_logger.py")


def stack(*frames: tuple[str, str]) -> tuple[Frame, ...]:
    return tuple(Frame(function=function, file=f"/site-packages/{file}", line=7) for function, file in frames)


@pytest.mark.parametrize(
    ("frames", "phase", "place"),
    [
        (
            (
                ("all_reduce", C10D), WRAPPER, ("_all_reduce_polls", "sglang/srt/disaggregation/utils.py"),
                ("poll_and_all_reduce", "sglang/srt/disaggregation/utils.py"),
                ("DecodeTransferQueue.pop_transferred", "sglang/srt/disaggregation/decode.py"), LOOP,
            ),
            "all_reduce", "all_reduce under poll_and_all_reduce",
        ),
        (
            (
                ("all_reduce", C10D), WRAPPER, ("HiRadixCache.can_terminate_prefetch", "sglang/srt/mem_cache/h.py"),
                ("Scheduler.get_next_batch_to_run", SCHEDULER), LOOP,
            ),
            "all_reduce", "all_reduce under can_terminate_prefetch",
        ),
        (
            (
                ("broadcast", C10D), WRAPPER, ("broadcast_pyobj", "sglang/srt/utils/common.py"),
                ("R._broadcast_reqs_across_ranks", "sglang/srt/managers/scheduler_components/request_receiver.py"),
                ("R.recv_requests", "sglang/srt/managers/scheduler_components/request_receiver.py"), LOOP,
            ),
            "broadcast", "broadcast under _broadcast_reqs_across_ranks",
        ),
        (
            (
                ("all_gather_into_tensor", C10D), WRAPPER,
                ("prepare_mlp_sync_batch_raw", "sglang/srt/managers/scheduler_components/dp_attn.py"), LOOP,
            ),
            "collective", "all_gather_into_tensor under prepare_mlp_sync_batch_raw",
        ),
        (
            (
                ("recv", C10D), WRAPPER, ("point_to_point_pyobj", "sglang/srt/utils/common.py"),
                ("S._pp_recv_pyobj_from_prev_stage", "sglang/srt/managers/scheduler_pp_mixin.py"),
            ),
            "point to point", "recv under point_to_point_pyobj",
        ),
        (
            (
                ("Event.synchronize", "torch/cuda/streams.py"), ("Scheduler.process_batch_result", SCHEDULER),
                LOOP,
            ),
            "GPU synchronise", "synchronize under process_batch_result",
        ),
        (
            (("MooncakeKVSender.poll", "sglang/srt/disaggregation/mooncake/conn.py"), LOOP),
            "KV transfer", "poll",
        ),
        (
            (
                ("PrefillAdder.add_one_req", POLICY), ("Scheduler._get_new_batch_prefill_raw", SCHEDULER),
                ("Scheduler.get_new_batch_prefill", SCHEDULER), ("Scheduler.get_next_batch_to_run", SCHEDULER), LOOP,
            ),
            "admission", "add_one_req",
        ),
        (
            (("get_key", "sglang/srt/mem_cache/x.py"), ("Scheduler.get_next_batch_to_run", SCHEDULER), LOOP),
            "scheduling", "get_next_batch_to_run",
        ),
        (
            (
                ("Linear.forward", "torch/nn/modules/linear.py"),
                ("TpModelWorker.forward_batch_generation", "sglang/srt/managers/tp_worker.py"),
                ("Scheduler.run_batch", SCHEDULER), LOOP,
            ),
            "batch launch", "forward_batch_generation",
        ),
        ((("IdleSleeper.maybe_sleep", SCHEDULER), ("Scheduler.on_idle", SCHEDULER), LOOP), "idle loop", "maybe_sleep"),
        ((LOOP,), "idle loop", "event_loop_normal"),
        (
            (
                ("ShmRingBuffer.acquire_read", SHM), ("MessageQueue.dequeue", SHM),
                ("WorkerProc.worker_busy_loop", EXECUTOR),
            ),
            "idle loop", "acquire_read",
        ),
        (
            (
                ("MessageQueue.acquire_read", SHM), ("MessageQueue.dequeue", SHM), ("get_response", EXECUTOR),
                ("MultiprocExecutor.collective_rpc", EXECUTOR), ("MultiprocExecutor.execute_model", EXECUTOR),
                ("EngineCore.step", "vllm/v1/engine/core.py"),
            ),
            "waits for workers", "acquire_read",
        ),
        (
            (
                ("KVCacheManager.allocate_slots", "vllm/v1/core/kv_cache_manager.py"),
                ("Scheduler.schedule", "vllm/v1/core/sched/scheduler.py"),
                ("EngineCore.step", "vllm/v1/engine/core.py"),
            ),
            "admission", "schedule",
        ),
        (
            (("get", "queue.py"), ("EngineCoreProc._process_input_queue", "vllm/v1/engine/core.py")),
            "idle loop", "_process_input_queue",
        ),
        ((("compile", "triton/compiler.py"), ("main", "x.py")), "", "compile"),
        ((), "", ""),
    ],
)  # fmt: skip
def test_the_innermost_signature_decides(frames: tuple[tuple[str, str], ...], phase: str, place: str) -> None:
    assert standing(stack(*frames)) == Standing(phase=phase, place=place)


def test_where_exactly_a_rank_idles_is_no_difference() -> None:
    one = standing(stack(("recv_requests", SCHEDULER), LOOP))
    other = standing(stack(("on_idle", SCHEDULER), LOOP))
    assert one.key == other.key == ("idle loop", "")
