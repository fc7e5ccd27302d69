"""What a rank of an engine does, by the stack of its main thread: signatures of SGLang and vLLM, as data.

Names and files are those of SGLang 0.5.13 to 0.5.23, vLLM 0.1x and torch.distributed. The innermost frame that matches
decides. Of a wait in a collective the engine's own function that asked for it is named too: an `all_reduce` of a KV
transfer and one of a prefetch are not the same operation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from freezeframe.judge.model import Frame

ALL_REDUCE, BROADCAST, COLLECTIVE = "all_reduce", "broadcast", "collective"
POINT_TO_POINT = "point to point"
GPU_SYNCHRONISE, KV_TRANSFER = "GPU synchronise", "KV transfer"
ADMISSION, SCHEDULING = "admission", "scheduling"
BATCH, RESULT = "batch launch", "batch result"
WORKERS, IDLE = "waits for workers", "idle loop"

# Ranks wait for each other in these.
COLLECTIVES = frozenset({ALL_REDUCE, BROADCAST, COLLECTIVE})
# One place for all of it: where exactly a rank polls says nothing.
_ANYWHERE = frozenset({IDLE, SCHEDULING, ADMISSION, ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One frame that tells a phase."""

    phase: str
    # Function without its class.
    function: str
    # Part of the file's path; "" = any.
    file: str = ""
    # One of these must stand further out; () = nothing.
    under: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a stack is."""

    # "" when no signature matches.
    phase: str
    # "all_reduce under poll_and_all_reduce"; the innermost function when no signature matches.
    place: str

    @property
    def key(self) -> tuple[str, str]:
        """What ranks that stand together have in common."""
        return (self.phase, "" if self.phase in _ANYWHERE else self.place)


_C10D = "torch/distributed/"
_SCHEDULER = ("get_next_batch_to_run", "get_new_batch_prefill", "get_next_disagg_decode_batch_to_run")

SIGNATURES: tuple[Signature, ...] = (
    # torch.distributed and the engines' own communicators.
    Signature(phase=ALL_REDUCE, function="all_reduce", file=_C10D),
    Signature(phase=ALL_REDUCE, function="poll_and_all_reduce", file="disaggregation/utils.py"),
    Signature(phase=ALL_REDUCE, function="can_terminate_prefetch", file="mem_cache/"),
    Signature(phase=BROADCAST, function="broadcast", file=_C10D),
    Signature(phase=BROADCAST, function="broadcast_object_list", file=_C10D),
    Signature(phase=BROADCAST, function="broadcast_pyobj", file="srt/utils"),
    Signature(phase=COLLECTIVE, function="all_gather", file=_C10D),
    Signature(phase=COLLECTIVE, function="all_gather_into_tensor", file=_C10D),
    Signature(phase=COLLECTIVE, function="all_gather_object", file=_C10D),
    Signature(phase=COLLECTIVE, function="all_to_all_single", file=_C10D),
    Signature(phase=COLLECTIVE, function="reduce_scatter_tensor", file=_C10D),
    Signature(phase=COLLECTIVE, function="gather_object", file=_C10D),
    Signature(phase=COLLECTIVE, function="scatter_object_list", file=_C10D),
    Signature(phase=COLLECTIVE, function="barrier", file=_C10D),
    Signature(phase=COLLECTIVE, function="monitored_barrier", file=_C10D),
    # Pipeline stages wait for one another in these all the time.
    Signature(phase=POINT_TO_POINT, function="send", file=_C10D),
    Signature(phase=POINT_TO_POINT, function="recv", file=_C10D),
    Signature(phase=POINT_TO_POINT, function="isend", file=_C10D),
    Signature(phase=POINT_TO_POINT, function="irecv", file=_C10D),
    Signature(phase=POINT_TO_POINT, function="send_tensor_dict", file="parallel_state.py"),
    Signature(phase=POINT_TO_POINT, function="recv_tensor_dict", file="parallel_state.py"),
    Signature(phase=POINT_TO_POINT, function="point_to_point_pyobj", file="srt/utils"),
    # The GPU. `dispatch` is DeepEP's.
    Signature(phase=GPU_SYNCHRONISE, function="synchronize", file="torch/cuda/"),
    Signature(phase=GPU_SYNCHRONISE, function="synchronize", file="torch/accelerator/"),
    Signature(phase=GPU_SYNCHRONISE, function="dispatch", file="deep_ep/"),
    Signature(phase=GPU_SYNCHRONISE, function="low_latency_dispatch", file="deep_ep/"),
    Signature(phase=GPU_SYNCHRONISE, function="copy_to_cpu", file="managers/utils.py"),
    # Keys and values on their way between engines.
    Signature(phase=KV_TRANSFER, function="poll", file="disaggregation/"),
    Signature(phase=KV_TRANSFER, function="pop_transferred", file="disaggregation/decode.py"),
    Signature(phase=KV_TRANSFER, function="process_disagg_prefill_inflight_queue", file="disaggregation/prefill.py"),
    Signature(phase=KV_TRANSFER, function="send_kv_chunk", file="disaggregation/prefill.py"),
    Signature(phase=KV_TRANSFER, function="wait_for_layer_load", file="kv_connector"),
    Signature(phase=KV_TRANSFER, function="wait_for_save", file="kv_connector"),
    Signature(phase=KV_TRANSFER, function="get_finished", file="kv_connector"),
    # Reached with something in the waiting queue only: SGLang's returns before it otherwise, vLLM's core then sleeps.
    Signature(phase=ADMISSION, function="calc_priority", file="managers/schedule_policy.py"),
    Signature(phase=ADMISSION, function="add_one_req", file="managers/schedule_policy.py"),
    Signature(phase=ADMISSION, function="add_chunked_req", file="managers/schedule_policy.py"),
    Signature(phase=ADMISSION, function="init_next_round_input", file="managers/schedule_batch.py", under=_SCHEDULER),
    Signature(phase=ADMISSION, function="match_prefix", file="mem_cache/", under=_SCHEDULER),
    Signature(phase=ADMISSION, function="schedule", file="core/sched/"),
    # Batches.
    Signature(phase=BATCH, function="forward_batch_generation"),
    Signature(phase=BATCH, function="run_batch", file="scheduler"),
    Signature(phase=RESULT, function="process_batch_result", file="scheduler"),
    Signature(phase=SCHEDULING, function="get_next_batch_to_run"),
    Signature(phase=SCHEDULING, function="get_next_disagg_decode_batch_to_run"),
    # vLLM's queue between the core and its workers, from both ends.
    Signature(
        phase=WORKERS,
        function="acquire_read",
        file="shm_broadcast.py",
        under=("collective_rpc", "get_response", "wait_for_response", "result"),
    ),
    Signature(phase=IDLE, function="acquire_read", file="shm_broadcast.py", under=("worker_busy_loop",)),
    Signature(phase=WORKERS, function="collective_rpc", file="executor"),
    Signature(phase=BATCH, function="execute_model"),
    # Idle: SGLang's loops poll without blocking.
    Signature(phase=IDLE, function="maybe_sleep"),
    Signature(phase=IDLE, function="maybe_sleep_on_idle"),
    Signature(phase=IDLE, function="on_idle"),
    Signature(phase=IDLE, function="self_check_during_idle"),
    Signature(phase=IDLE, function="recv_requests"),
    Signature(phase=IDLE, function="_process_input_queue"),
    Signature(phase=IDLE, function="worker_busy_loop"),
    Signature(phase=IDLE, function="event_loop_normal"),
    Signature(phase=IDLE, function="event_loop_overlap"),
)

# Between a collective and the engine's function that asked for it.
_WRAPPERS = frozenset(
    {
        "wrapper", "broadcast_pyobj", "attn_cp_tp_broadcast_pyobj", "all_reduce_flags", "_all_reduce_polls",
        "_all_reduce", "all_reduce", "all_gather_single",
    }
)  # fmt: skip
_WAITS = COLLECTIVES | {POINT_TO_POINT, GPU_SYNCHRONISE}


def standing(frames: Sequence[Frame]) -> Standing:
    """Where a stack, innermost frame first, is."""
    functions = [frame.function.rpartition(".")[2] for frame in frames]
    for depth, frame in enumerate(frames):
        for signature in SIGNATURES:
            if _matches(signature, functions, depth, frame):
                return Standing(phase=signature.phase, place=_place(signature.phase, functions, frames, depth))
    return Standing(phase="", place=functions[0] if functions else "")


def _matches(signature: Signature, functions: Sequence[str], depth: int, frame: Frame) -> bool:
    return (
        functions[depth] == signature.function
        and signature.file in frame.file
        and (not signature.under or any(name in signature.under for name in functions[depth + 1 :]))
    )


def _place(phase: str, functions: Sequence[str], frames: Sequence[Frame], depth: int) -> str:
    if phase not in _WAITS:
        return functions[depth]
    asker = next(
        (
            functions[outer]
            for outer in range(depth + 1, len(frames))
            if functions[outer] not in _WRAPPERS and "torch/" not in frames[outer].file
        ),
        "",
    )
    return f"{functions[depth]} under {asker}" if asker else functions[depth]
