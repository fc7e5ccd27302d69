"""What is known against the numbers that engines and routers tell of themselves, as data: one sentence each.

A number is what its process last wrote. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from freezeframe.judge.correlate.thresholds import GAUGE_STALE_MS, LOAD_STALE_MS
from freezeframe.judge.model import Metric, Process


@dataclass(frozen=True, slots=True, kw_only=True)
class StalenessRule:
    """Against which numbers one sentence speaks."""

    # Of the whole name.
    name: re.Pattern[str]
    sentence: str
    # Product of the process that tells it; empty for any.
    product: str = ""
    # It speaks from this age on, milliseconds: infinite = only of unknown age, 0 = of any age.
    older_than_ms: float = 0.0
    # Whether it also speaks against a value of unknown age.
    unknown_age: bool = True


_SGLANG_QUEUES = r"sglang:num_(?!.*_total$).*_reqs"

# The first that fits speaks.
STALENESS_RULES: tuple[StalenessRule, ...] = (
    StalenessRule(
        name=re.compile(_SGLANG_QUEUES),
        older_than_ms=GAUGE_STALE_MS,
        unknown_age=False,
        sentence="frozen: an idle scheduler writes it every 30 s, so this loop is not idle, or requests in a queue of "
        "disaggregation keep it from writing; it says nothing about now",
    ),
    StalenessRule(
        name=re.compile(_SGLANG_QUEUES),
        older_than_ms=inf,
        sentence="of unknown age: its scheduler writes it at batches and every 30 s when all its queues are empty, and "
        "a stopped one leaves it as it was",
    ),
    StalenessRule(
        name=re.compile(r"load_.*"),
        older_than_ms=LOAD_STALE_MS,
        unknown_age=False,
        sentence="frozen: a scheduler whose loop turns writes it each second",
    ),
    StalenessRule(
        name=re.compile(r"sglang:gen_throughput"),
        sentence="the rate of the last batch that was logged: it stays while nothing is generated",
    ),
    StalenessRule(
        name=re.compile(r"sglang:http_requests_active"),
        sentence="falls when the headers go out, a stream's with its first token: streams that have begun are missing",
    ),
    StalenessRule(
        name=re.compile(r"sglang:(generation|prompt|realtime)_tokens_total"),
        sentence="grows when a batch is logged, each 40 steps of decode: no change in a short window proves nothing",
    ),
    StalenessRule(
        name=re.compile(r"vllm:num_requests_(running|waiting).*"),
        older_than_ms=inf,
        sentence="kept by the API server at each step of its core: it stands still when the core does",
    ),
    StalenessRule(
        name=re.compile(r"smg_http_connections_active"),
        sentence="an upper bound: it does not fall when a client leaves",
    ),
    StalenessRule(
        name=re.compile(r"smg_worker_requests_active|router_worker_load"),
        product="sglang-router",
        sentence="misses streams, requests to a disaggregated pair, and with round_robin all of them",
    ),
    StalenessRule(
        name=re.compile(r"smg_http_inflight_request_age_count"),
        sentence="taken every 20 s, and only of requests whose headers have not gone out",
    ),
    StalenessRule(
        name=re.compile(r"(smg|sgl_router)_worker_health|router_worker_healthy"),
        sentence="by a check each 60 s that has to fail three times: a worker can be gone for minutes",
    ),
)


def annotate(metrics: Iterable[Metric], processes: Mapping[int, Process]) -> tuple[Metric, ...]:
    """Every metric with what is known against it."""
    found = []
    # Thousands of series share some tens of names.
    rules: dict[str, list[StalenessRule]] = {}
    for metric in metrics:
        if metric.name not in rules:
            rules[metric.name] = [rule for rule in STALENESS_RULES if rule.name.fullmatch(metric.name)]
        process = processes.get(metric.pid)
        product = process.product if process is not None else ""
        speaking = (rule for rule in rules[metric.name] if rule.product in ("", product))
        note = next((rule.sentence for rule in speaking if _applies(rule, metric.age_ms)), "")
        found.append(metric if note == metric.note else replace(metric, note=note))
    return tuple(found)


def _applies(rule: StalenessRule, age_ms: float | None) -> bool:
    return rule.unknown_age if age_ms is None else age_ms > rule.older_than_ms or rule.older_than_ms == 0
