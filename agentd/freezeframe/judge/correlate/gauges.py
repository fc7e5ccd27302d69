"""One engine's numbers, each from the source that tells the freshest: files, load snapshot, HTTP.

The same number may come from several sources. HTTP serves what the files hold, without its age, so it counts only for
what no file has. What is known to be too old says nothing about now and is left out, and nothing of unknown age takes
its place. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from freezeframe.judge.correlate.facts import Gauges
from freezeframe.judge.correlate.thresholds import GAUGE_STALE_MS
from freezeframe.judge.model import Metric

Indexed = tuple[int, Metric]

# Each quantity's names, source by source: a scheduler's gauges, and its load snapshot, in which waiting requests are
# told apart from those of disaggregation only in sections that an older one does not have.
_RUNNING = (("sglang:num_running_reqs", "vllm:num_requests_running"), ("load_num_running_reqs",))
_WAITING = (
    (
        "sglang:num_queue_reqs",
        "sglang:num_grammar_queue_reqs",
        "sglang:num_paused_reqs",
        "sglang:num_retracted_reqs",
        "vllm:num_requests_waiting",
    ),
    ("load_queues_waiting", "load_queues_grammar", "load_queues_paused", "load_queues_retracted"),
)
# Queues of disaggregation: a request in one of them waits for the other engine, or for its own scheduler.
_BOOTSTRAP = (
    ("sglang:num_prefill_bootstrap_queue_reqs", "sglang:num_decode_prealloc_queue_reqs"),
    ("load_disaggregation_prefill_bootstrap_queue_reqs", "load_disaggregation_decode_prealloc_queue_reqs"),
)
_TRANSFER = (
    (
        "sglang:num_prefill_inflight_queue_reqs",
        "sglang:num_decode_transfer_queue_reqs",
        "sglang:num_decode_host_receive_queue_reqs",
    ),
    ("load_disaggregation_prefill_inflight_queue_reqs", "load_disaggregation_decode_transfer_queue_reqs"),
)
# Names of all these, and of the counters that tell of progress.
QUEUES = frozenset(
    name for sources in (_RUNNING, _WAITING, _BOOTSTRAP, _TRANSFER) for names in sources for name in names
)
_GENERATED = ("sglang:generation_tokens_total", "vllm:generation_tokens_total")
_TOKENS = (
    *_GENERATED,
    "sglang:prompt_tokens_total",
    "sglang:realtime_tokens_total",
    "vllm:prompt_tokens_total",
    "vllm:iteration_tokens_total_count",
)
COUNTERS = frozenset(_TOKENS)
ACTIVE = frozenset({"sglang:http_requests_active"})
# What SGLang's load snapshot tells of each scheduler, with the time at which that wrote it.
_TOLD = "load_num_running_reqs"
_HTTP = "http "


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """One quantity from one source."""

    value: float
    # Of the oldest of its series; None when unknown.
    age_ms: float | None
    used: tuple[Indexed, ...]


def read_gauges(metrics: Sequence[Indexed]) -> Gauges:
    """Sum up what the processes of one engine tell."""
    best = _best(metrics)
    found = {
        "running": _freshest(best, _RUNNING),
        "waiting": _freshest(best, _WAITING),
        "bootstrap": _freshest(best, _BOOTSTRAP),
        "transfer": _freshest(best, _TRANSFER),
    }
    values = {name: None if reading is None else reading.value for name, reading in found.items()}
    used = [reading for reading in found.values() if reading is not None]
    handover = [value for value in (values["bootstrap"], values["transfer"]) if value is not None]
    chosen = [metric for _, metric in best]
    return Gauges(
        running=values["running"],
        waiting=values["waiting"],
        bootstrap=values["bootstrap"],
        transfer=values["transfer"],
        handover=sum(handover) if handover else None,
        tokens_delta=_total(m.delta for m in chosen if m.name in _TOKENS),
        generated_delta=_total(m.delta for m in chosen if m.name in _GENERATED),
        # GET is the agent's own question, a scrape or a health check.
        http_active=_total(m.value for m in chosen if m.name in ACTIVE and dict(m.labels).get("method") == "POST"),
        age_ms=max((reading.age_ms for reading in used if reading.age_ms is not None), default=None),
        told_age_ms=max((m.age_ms for m in chosen if m.name == _TOLD and m.age_ms is not None), default=None),
        indexes=tuple(sorted({index for reading in used for index, _ in reading.used})),
    )


def _best(metrics: Sequence[Indexed]) -> list[Indexed]:
    """Of each name what its best source tells; of a series with several writers what was written last."""
    filed = {metric.name for _, metric in metrics if not metric.source.startswith(_HTTP)}
    found: dict[tuple[object, ...], Indexed] = {}
    for index, metric in metrics:
        if metric.source.startswith(_HTTP) and metric.name in filed:
            continue
        # Values without a time are parts of a sum.
        key = (metric.name, metric.labels) if metric.age_ms is not None else (index,)
        other = found.get(key)
        if other is None or (other[1].age_ms or 0.0) > (metric.age_ms or 0.0):
            found[key] = index, metric
    return list(found.values())


def _freshest(metrics: Iterable[Indexed], sources: tuple[tuple[str, ...], ...]) -> _Reading | None:
    readings = []
    for names in sources:
        used = tuple(entry for entry in metrics if entry[1].name in names)
        if used:
            ages = [metric.age_ms for _, metric in used if metric.age_ms is not None]
            value = sum(metric.value for _, metric in used)
            readings.append(_Reading(value=value, age_ms=max(ages, default=None), used=used))
    known = [reading for reading in readings if reading.age_ms is not None]
    if not known:
        return readings[0] if readings else None
    best = min(known, key=lambda reading: reading.age_ms or 0.0)
    return best if (best.age_ms or 0.0) <= GAUGE_STALE_MS else None


def _total(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
