from __future__ import annotations

from dataclasses import replace

from freezeframe.judge.model import DebugTrace, Verdict
from freezeframe.judge.verdicts import conclude
from tests.support.wedged_scenes import WEDGED

TRACES = ("cuda core pipe", "/app/corepipe.cuda.gpu-07.7"), ("flight recorder", "/tmp/nccl_trace_rank_3")


def steps(name: str, *, other: int = 0) -> tuple[str, ...]:
    snapshot = WEDGED[name][1]().snapshot()
    (holder, *_) = conclude(snapshot).verdict.holder_pids  # type: ignore[union-attr]
    pid = holder + other
    known = tuple(DebugTrace(pid=pid, kind=kind, path=path, age_ms=41_000.0) for kind, path in TRACES)
    verdict = conclude(replace(snapshot, debug_traces=(*known, DebugTrace(pid=pid, kind="nccl ras")))).verdict
    assert verdict is not None
    return tuple(step.replace(str(pid), "PID") for step in verdict.next_steps)


def test_what_is_ready_for_the_holder_is_named_as_a_next_step() -> None:
    assert WEDGED["stalled_decode"][0] is Verdict.Code.DECODE_STALLED
    pipe, dumps, ras = steps("stalled_decode")[-3:]
    assert pipe.startswith("echo 1 > /proc/PID/root/app/corepipe.cuda.gpu-07.7  # ")
    assert "ENDS the process" in pipe
    assert dumps == (
        "torchfrtrace --prefix nccl_trace_rank_ /proc/PID/root/tmp"
        "  # which rank left which collective, the newest from 41 s ago"
    )
    assert "NCCL's RAS" in ras


def test_it_is_no_ones_else_and_helps_with_no_other_code() -> None:
    assert not [step for step in steps("stalled_decode", other=1000) if "corepipe" in step]
    assert not [step for step in steps("silent_engine") if "corepipe" in step]
