from __future__ import annotations

import pytest

from freezeframe.judge.correlate.gauges import read_gauges
from freezeframe.judge.correlate.staleness import STALENESS_RULES, annotate
from freezeframe.judge.model import Metric, Process

RUNNING, WAITING = "sglang:num_running_reqs", "sglang:num_queue_reqs"
HTTP = "http 127.0.0.1:30000/metrics"


def metric(name: str, value: float, age_ms: float | None = None, source: str = "mmap", **labels: str) -> Metric:
    return Metric(name=name, value=value, age_ms=age_ms, source=source, pid=7, labels=tuple(labels.items()))


def test_a_file_says_how_old_what_http_serves_is() -> None:
    found = read_gauges(
        tuple(enumerate([metric(RUNNING, 30, None, HTTP), metric(RUNNING, 30, 90), metric(WAITING, 2, 120)]))
    )
    assert (found.running, found.waiting, found.age_ms, found.indexes) == (30, 2, 120, (1, 2))


def test_what_is_too_old_counts_for_nothing_and_http_does_not_take_its_place() -> None:
    found = read_gauges(tuple(enumerate([metric(RUNNING, 30, None, HTTP), metric(RUNNING, 30, 36_000)])))
    assert (found.running, found.known, found.age_ms) == (None, False, None)


def test_http_counts_where_there_is_no_file() -> None:
    found = read_gauges(tuple(enumerate([metric(RUNNING, 3, None, HTTP), metric(WAITING, 4, None, HTTP)])))
    assert (found.running, found.waiting, found.age_ms) == (3, 4, None)


@pytest.mark.parametrize(("gauge_age", "load_age", "running"), [(20_000, 400, 7), (300, 400, 3), (300, 90_000, 3)])
def test_the_freshest_of_gauge_and_load_snapshot(gauge_age: float, load_age: float, running: float) -> None:
    told = metric("load_num_running_reqs", 7, load_age, "load snapshot", dp_rank="0")
    found = read_gauges(tuple(enumerate([metric(RUNNING, 3, gauge_age), told])))
    assert (found.running, found.told_age_ms) == (running, load_age)


def test_two_writers_of_one_series_are_one_and_ranks_are_added_up() -> None:
    found = read_gauges(
        tuple(
            enumerate(
                [
                    metric(RUNNING, 5, 9_000, dp_rank="0"),
                    metric(RUNNING, 6, 100, dp_rank="0"),
                    metric(RUNNING, 10, 200, dp_rank="1"),
                ]
            )
        )
    )
    assert (found.running, found.age_ms) == (16, 200)


def test_tokens_are_counted_once_whatever_tells_them() -> None:
    tokens = "sglang:generation_tokens_total"
    several = [
        Metric(name=tokens, value=70, delta=7, source="mmap", pid=7),
        Metric(name=tokens, value=30, delta=3, source="mmap", pid=8),
        Metric(name=tokens, value=100, delta=10, source=HTTP, pid=6),
    ]
    found = read_gauges(tuple(enumerate(several)))
    assert (found.tokens_delta, found.generated_delta) == (10, 10)


def test_bootstrap_and_transfer_are_told_apart() -> None:
    found = read_gauges(
        tuple(
            enumerate(
                [
                    metric("sglang:num_prefill_bootstrap_queue_reqs", 30, 10),
                    metric("sglang:num_prefill_inflight_queue_reqs", 2, 10),
                ]
            )
        )
    )
    assert (found.bootstrap, found.transfer, found.handover) == (30, 2, 32)


@pytest.mark.parametrize(
    ("one", "product", "word"),
    [
        (metric(RUNNING, 30, 34_000), "sglang", ""),
        (metric(RUNNING, 30, 36_000), "sglang", "frozen"),
        (metric(RUNNING, 30, None, HTTP), "sglang", "unknown age"),
        (metric("sglang:num_transfer_failed_reqs_total", 3), "sglang", ""),
        (metric("load_num_running_reqs", 1, 4_000, "load snapshot"), "sglang", ""),
        (metric("load_num_running_reqs", 1, 6_000, "load snapshot"), "sglang", "each second"),
        (metric("sglang:http_requests_active", 1), "sglang", "streams that have begun"),
        (metric("vllm:num_requests_running", 1, None, HTTP), "vllm", "stands still"),
        (metric("vllm:num_requests_running", 1, 10), "vllm", ""),
        (metric("smg_http_connections_active", 30, None, HTTP), "smg", "upper bound"),
        (metric("smg_worker_requests_active", 0, None, HTTP), "sglang-router", "misses streams"),
        (metric("smg_worker_requests_active", 8, None, HTTP), "smg", ""),
        (metric("router_worker_load", 0, None, HTTP), "sglang-router", "misses streams"),
        (metric("router_worker_healthy", 1, None, HTTP), "smg", "for minutes"),
        (metric("sglang:token_usage", 0.5, None, HTTP), "sglang", ""),
    ],
)
def test_what_is_known_against_a_number(one: Metric, product: str, word: str) -> None:
    (found,) = annotate([one], {7: Process(pid=7, product=product)})
    assert (word in found.note) if word else found.note == ""


def test_each_rule_has_a_sentence_of_its_own() -> None:
    assert len({rule.sentence for rule in STALENESS_RULES}) == len(STALENESS_RULES)
