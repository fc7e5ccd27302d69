from __future__ import annotations

import pytest

from freezeframe.judge.model import Confidence, Verdict
from tests.support.rank_scenes import BATCH, BROADCAST, IDLE, PREFETCH, TRANSFER, ranked, ranks_of, switches

Code = Verdict.Code


def codes(scene: object) -> list[Verdict.Code]:
    return [finding.code for finding in scene.conclude().findings]


def test_one_rank_in_the_all_reduce_of_a_prefetch_and_its_peers_in_a_broadcast():
    scene, engine = ranked(BROADCAST, BROADCAST, PREFETCH, BROADCAST)
    snapshot = scene.conclude()
    verdict = snapshot.verdict
    odd = ranks_of(scene)[2]
    assert (verdict.code, verdict.hop, verdict.holder_pids) == (Code.RANKS_DIVERGED, "scheduler", (odd,))
    assert (verdict.confidence, verdict.explains) == (Confidence.Level.HIGH, 30)
    assert verdict.summary == (
        "The 4 ranks of the scheduler wait for each other in different collectives: "
        "TP2 in all_reduce under can_terminate_prefetch; "
        "TP0-1, TP3 in broadcast under _broadcast_reqs_across_ranks; "
        "30 requests of harness.py (pid 101) wait, oldest 41 s."
    )
    # The table is in the evidence, the minority first.
    assert verdict.evidence[0].text == (
        f"TP2 (pid {odd}) is in all_reduce under can_terminate_prefetch at both looks and never woke in between"
    )
    first = snapshot.ranks[int(verdict.evidence[0].ref.split("]")[0].removeprefix("ranks["))]
    assert (first.pid, first.rank, first.phase, first.minority) == (odd, "TP2", "all_reduce", True)
    assert [rank.rank for rank in snapshot.ranks] == ["TP2", "TP0", "TP1", "TP3"]
    assert {rank.engine_pid for rank in snapshot.ranks} == {engine.http}


def test_two_all_reduces_of_different_purposes():
    scene, _ = ranked(TRANSFER, PREFETCH)
    verdict = scene.verdict()
    assert (verdict.code, verdict.holder_pids) == (Code.RANKS_DIVERGED, tuple(ranks_of(scene)))


def test_attention_that_is_data_parallel_is_one_group():
    scene, _ = ranked(BROADCAST, TRANSFER, labels=("DP0 TP0", "DP1 TP1"))
    assert scene.verdict().code is Code.RANKS_DIVERGED


@pytest.mark.parametrize(
    "labels",
    [("DP0 TP0", "DP1 TP0"), ("PP0 TP0", "PP1 TP0"), ("TP8", "TP9"), ("TP0", "TP2"), ("", "")],
    ids=["replicas", "stages", "ranks-elsewhere", "a-rank-missing", "no-numbers"],
)
def test_lookalike_no_group_or_not_the_whole_of_it(labels: tuple[str, str]):
    assert Code.RANKS_DIVERGED not in codes(ranked(BROADCAST, TRANSFER, labels=labels)[0])


@pytest.mark.parametrize(
    "argv",
    [("sglang", "--nnodes", "2"), ("sglang", "--nnodes=2"), ("sglang", "--tp-size", "4"), ("sglang", "--tp=8")],
)
def test_lookalike_ranks_on_other_hosts(argv: tuple[str, ...]):
    scene, engine = ranked(BROADCAST, TRANSFER)
    scene.change(engine.http, argv=argv)
    assert Code.RANKS_DIVERGED not in codes(scene)


def test_flags_that_name_this_host_alone():
    scene, engine = ranked(BROADCAST, TRANSFER)
    scene.change(engine.http, argv=("sglang", "--nnodes", "1", "--tp-size", "2"))
    assert scene.verdict().code is Code.RANKS_DIVERGED


@pytest.mark.parametrize("first", [IDLE, BATCH], ids=["idle", "computes"])
def test_lookalike_the_others_wait_for_one_that_is_in_no_collective(first: object):
    assert Code.RANKS_DIVERGED not in codes(ranked(first, BROADCAST, PREFETCH)[0])


def test_lookalike_all_in_the_same_collective():
    assert Code.RANKS_DIVERGED not in codes(ranked(BROADCAST, BROADCAST)[0])


def test_near_miss_one_of_them_woke():
    scene, _ = ranked(BROADCAST, PREFETCH)
    switches(scene, ranks_of(scene)[0], 3)
    assert Code.RANKS_DIVERGED not in codes(scene)


def test_near_miss_another_stack_at_the_second_look():
    scene, _ = ranked(BROADCAST, PREFETCH)
    scene.stack(ranks_of(scene)[1], PREFETCH, same=False)
    assert Code.RANKS_DIVERGED not in codes(scene)


def test_near_miss_one_is_stopped():
    scene, _ = ranked(BROADCAST, PREFETCH)
    scene.state(ranks_of(scene)[0], "T")
    assert Code.RANKS_DIVERGED not in codes(scene)


def test_near_miss_an_answer_moves():
    scene, engine = ranked(BROADCAST, PREFETCH)
    scene.streams("10.0.0.9", engine, 1)
    assert Code.RANKS_DIVERGED not in codes(scene)


def test_without_stacks_nothing_is_claimed():
    scene, _ = ranked(BROADCAST, PREFETCH)
    scene.lose("snapshot_python_stacks")
    assert Code.RANKS_DIVERGED not in codes(scene)
    assert [(rank.phase, rank.frame) for rank in scene.conclude().ranks] == [("", ""), ("", "")]


def test_a_verdict_on_a_scheduler_carries_the_rank_table():
    scene, engine = ranked(BATCH, BROADCAST, BROADCAST, BROADCAST)
    scene.gauges(engine, running=4)
    verdict = scene.verdict()
    assert verdict.code in {Code.DECODE_STALLED, Code.PREFILL_STALLED}
    assert [fact.text for fact in verdict.evidence[-2:]] == [
        "ranks: TP0 in forward_batch_generation (batch launch), the minority",
        "ranks: TP1-3 in broadcast under _broadcast_reqs_across_ranks (broadcast)",
    ]
    assert verdict.evidence[-1].ref == "ranks[1] ranks[2] ranks[3]"
