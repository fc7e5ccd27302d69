"""What engines and routers say of themselves over HTTP, as Metric records: Prometheus text, /workers, /v1/loads.

Pure. The texts come from a target and are hostile: labels are kept by an allow-list, names and values escaped and cut,
series counted. Histogram buckets are left out; their counts and sums are kept.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from freezeframe.agentd.host.text import escape
from freezeframe.judge.model import Metric

MAX_SERIES = 5000
_TEXT_BYTES = 200
# Labels that tell which rank, worker or endpoint; never who the user is or what was asked.
LABELS = frozenset(
    {
        *("model_name", "engine_type", "engine", "tp_rank", "pp_rank", "dp_rank", "moe_ep_rank", "component", "stage"),
        *(
            "endpoint",
            "method",
            "handler",
            "route",
            "path",
            "status",
            "status_code",
            "code",
            "error_code",
            "error_type",
        ),
        *("worker", "worker_id", "worker_type", "connection_mode", "router_type", "backend_type", "policy", "model"),
        *("result", "outcome", "reason", "state", "from", "to", "gt", "le", "type", "direction", "finished_reason"),
    }
)
_LABELS_WITH_URL = frozenset({"worker", "worker_id"})
# Families of the serving software; the exporter's own (python_gc_..., process_open_fds) say nothing here.
_FAMILIES = re.compile(
    r"(?:sglang|vllm)[:_]|smg_|sgl_|dynamo_|http_|process_(?:cpu_seconds|resident_memory_bytes|start_time)"
)
_BUCKETS = re.compile(r"^[^\s{]+_bucket\{.*\n?", re.MULTILINE)
# Numbers of one rank in /v1/loads, and of the objects in it.
_LOADS = frozenset(
    {
        *("num_running_reqs", "num_waiting_reqs", "num_reqs", "num_used_tokens", "num_total_tokens", "token_usage"),
        *("max_total_num_tokens", "gen_throughput", "cache_hit_rate", "utilization", "max_running_requests"),
        *("waiting", "grammar", "paused", "retracted", "prefill_prealloc_queue_reqs", "prefill_inflight_queue_reqs"),
        "prefill_bootstrap_queue_reqs",
        *("decode_prealloc_queue_reqs", "decode_transfer_queue_reqs", "decode_retracted_queue_reqs"),
        *("kv_transfer_speed_gb_s", "kv_transfer_latency_ms"),
    }
)
_LOAD_SECTIONS = ("queues", "disaggregation")


def parse_metrics(text: bytes, pid: int, source: str) -> tuple[list[Metric], int]:
    """Samples of a Prometheus text and how many series were left out past MAX_SERIES. Raises ValueError.

    Series that differ only in labels that are not kept are added up.
    """
    decoded = _BUCKETS.sub("", text.decode("utf-8", "replace"))
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    left_out = 0
    try:
        for family in text_string_to_metric_families(decoded):
            for sample in family.samples:
                if not _FAMILIES.match(sample.name) or not math.isfinite(sample.value):
                    continue
                key = (escape(sample.name.encode(), _TEXT_BYTES), _labels(sample.labels))
                if key not in sums and len(sums) >= MAX_SERIES:
                    left_out += 1
                    continue
                sums[key] = sums.get(key, 0.0) + sample.value
    # The parser indexes into lines that it takes for well-formed.
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"parsing {len(text)} bytes of metrics: {error!r}") from error
    metrics = [
        Metric(name=name, labels=labels, value=value, pid=pid, source=source) for (name, labels), value in sums.items()
    ]
    return metrics, left_out


def parse_workers(text: bytes, pid: int, source: str) -> list[Metric]:
    """What a router knows of its workers: router_worker_healthy and router_worker_load. Raises ValueError."""
    workers = _object(text).get("workers")
    if not isinstance(workers, list):
        raise ValueError("parsing /workers: no list of workers")
    metrics = []
    for worker in workers[:MAX_SERIES]:
        if not isinstance(worker, dict) or not isinstance(worker.get("url"), str):
            continue
        labels = [("worker", _url(worker["url"]))]
        if isinstance(worker.get("worker_type"), str):
            labels.append(("worker_type", _cut(worker["worker_type"])))
        for name, key in (("router_worker_healthy", "is_healthy"), ("router_worker_load", "load")):
            value = _number(worker.get(key))
            if value is not None:
                metrics.append(Metric(name=name, labels=tuple(labels), value=value, pid=pid, source=source))
    return metrics


def parse_loads(text: bytes, pid: int, source: str, wall: float) -> list[Metric]:
    """SGLang's load snapshot, one series per rank, with its age where it carries a timestamp. Raises ValueError."""
    answer = _object(text)
    loads = answer.get("loads")
    if not isinstance(loads, list):
        raise ValueError("parsing /v1/loads: no list of loads")
    metrics = []
    for load in loads[:MAX_SERIES]:
        if isinstance(load, dict):
            metrics += read_load(load, pid, source, wall)
    return metrics


def read_load(load: dict[str, Any], pid: int, source: str, wall: float) -> list[Metric]:
    """Numbers of one rank's load, with their age where it carries a timestamp."""
    metrics = []
    stamp = _number(load.get("timestamp"))
    age = max(0.0, (wall - stamp) * 1000.0) if stamp else None
    labels = (("dp_rank", _cut(str(load.get("dp_rank", 0)))),)
    sections = [("", load), *((f"{name}_", load.get(name)) for name in _LOAD_SECTIONS)]
    for prefix, section in sections:
        if not isinstance(section, dict):
            continue
        for key, value in section.items():
            number = _number(value) if key in _LOADS else None
            if number is not None:
                name = f"load_{prefix}{key}"
                metrics.append(Metric(name=name, labels=labels, value=number, age_ms=age, pid=pid, source=source))
    return metrics


def known_series(name: str, labels: dict[str, str]) -> tuple[str, tuple[tuple[str, str], ...]] | None:
    """Name and labels of a series as they are kept; None for one that is left out, such as a bucket."""
    if not _FAMILIES.match(name) or name.endswith("_bucket"):
        return None
    return escape(name.encode(), _TEXT_BYTES), _labels(labels)


def _object(text: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"parsing {len(text)} bytes of JSON: {type(error).__name__}") from error
    if not isinstance(answer, dict):
        raise ValueError("parsing JSON: not an object")
    return answer


def _number(value: object) -> float | None:
    if not isinstance(value, (bool, int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _labels(labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(
        sorted(
            (name, _url(value) if name in _LABELS_WITH_URL else _cut(value))
            for name, value in labels.items()
            if name in LABELS
        )
    )


def _cut(text: str) -> str:
    return escape(text.encode("utf-8", "replace"), _TEXT_BYTES)


def _url(text: str) -> str:
    """Return a worker's URL without user, password, query and fragment."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return "unreadable"
    if not parts.netloc:
        return _cut(text.rpartition("@")[2].partition("?")[0])
    return _cut(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}")
