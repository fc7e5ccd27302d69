"""The scheduler's metrics: real names and labels, gauges with value and time (prometheus_client's ``mostrecent``)."""

from __future__ import annotations

import time

from prometheus_client import Counter, Gauge

GAUGES = (
    "num_running_reqs",
    "num_queue_reqs",
    "num_grammar_queue_reqs",
    "num_used_tokens",
    "token_usage",
    "gen_throughput",
    "cache_hit_rate",
    "num_prefill_bootstrap_queue_reqs",
    "num_prefill_inflight_queue_reqs",
    "num_decode_prealloc_queue_reqs",
    "num_decode_transfer_queue_reqs",
)


class SchedulerMetricsCollector:
    def __init__(self, labels: dict[str, str]) -> None:
        names = list(labels)
        self._gauges = {
            name: Gauge(f"sglang:{name}", name, names, multiprocess_mode="mostrecent").labels(**labels)
            for name in GAUGES
        }
        tokens = Counter("sglang:realtime_tokens_total", "Tokens, on each log interval", [*names, "mode"])
        self._tokens = {
            mode: tokens.labels(**labels, mode=mode) for mode in ("prefill_compute", "prefill_cache", "decode")
        }
        cpu = Counter("sglang:process_cpu_seconds_total", "CPU time of a process", [*names, "component"])
        self._cpu = cpu.labels(**labels, component="scheduler")
        self._cpu_seen = 0.0
        self.last_log_time = 0.0

    def log_stats(self, gauges: dict[str, float], *, prefill_tokens: int = 0, decode_tokens: int = 0) -> None:
        """Write every gauge; a name absent from `gauges` is written as 0."""
        for name, gauge in self._gauges.items():
            gauge.set(gauges.get(name, 0.0))
        self._tokens["prefill_compute"].inc(prefill_tokens)
        self._tokens["decode"].inc(decode_tokens)
        used = time.process_time()
        self._cpu.inc(used - self._cpu_seen)
        self._cpu_seen = used
        self.last_log_time = time.monotonic()
