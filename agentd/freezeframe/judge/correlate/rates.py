"""How much a client got of late: bytes and tokens per second, from the recorder's history.

A token of a streamed answer is a server-sent event, as near as one can tell from outside: the begin or the end of an
answer is an event without one, and an engine that guesses ahead puts several into one. What the recorder counts are
writes that end with an event, so events that a router or proxy wrote together count once; what the engines wrote to it
says how many there were.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from freezeframe.judge.correlate.facts import Client, Facts
from freezeframe.judge.model import Process, Series, Snapshot

Role = Process.Role

_BYTES, _EVENTS = "answer bytes", "answer events"
# Kinds of series that are read, and over how long at most.
KINDS = frozenset({_BYTES, _EVENTS})
LONGEST_S = 60
# A file can come from anybody: no recorder samples more often, or tells no number.
LEAST_INTERVAL_MS = 1.0
# Time over which tokens are counted.
_TOKENS_S = 10
# Sampled less often than this in that time, a rate says nothing of how steady it was: so much of it may be off.
_FEW_SAMPLES, _UNSTEADY = 3, 0.2
# SGLang counts tokens once in so many batches, each of a token per answer; vLLM after each.
_BATCHES = {"sglang": 40, "vllm": 1}
_FORWARDERS = frozenset({Role.ROUTER, Role.PROXY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Tokens per second, and by how much that may be off either way; absent when nobody can tell."""

    value: float
    error: float | None


def recent_rate(snapshot: Snapshot, client: Client, seconds: int) -> float | None:
    """Bytes per second towards a client over the last seconds; None where nobody watched for so long."""
    samples = _samples(snapshot, seconds, _BYTES, lambda series: _is_towards(series, client))
    if samples is None or (client.moving and not any(samples)):
        return None  # what the sockets saw has not been sampled yet
    return statistics.fmean(samples)


def token_rate(facts: Facts, client: Client) -> Rate | None:
    """Tokens per second towards a client with an answer in progress; None when unknown.

    By the events of its streams over the last 10 s. Else by the counters of the engines over the window, when nobody
    else gets a stream: tokens have no address.
    """
    if not client.streaming:
        return None
    return _by_events(facts, client) or _by_counters(facts, client)


def _by_events(facts: Facts, client: Client) -> Rate | None:
    samples = _samples(facts.snapshot, _TOKENS_S, _EVENTS, lambda series: _is_towards(series, client))
    if samples is None or not samples[-1]:
        return None
    rate = statistics.fmean(samples)
    distinct = len(set(samples))
    spread = 2 * statistics.stdev(samples) / math.sqrt(distinct)
    unsteady = spread if distinct >= _FEW_SAMPLES else rate * _UNSTEADY
    # What was written together counts between nothing and its share of all that was.
    half = rate * _written_together(facts) / 2 if _via_forwarder(facts, client) else 0.0
    # One event of each stream at each end of the time.
    return Rate(value=rate + half, error=half + unsteady + 2 * client.streaming / _TOKENS_S)


def _by_counters(facts: Facts, client: Client) -> Rate | None:
    generated = sum(e.gauges.generated_delta or 0.0 for e in facts.engines)
    # None counted beside a stream that moves is no rate: the counters move once in some tens of steps.
    if not facts.two_looks or not generated or sum(c.streaming > 0 for c in facts.clients) != 1:
        return None
    products = {facts.processes[e.pid].product for e in facts.engines if e.gauges.generated_delta}
    known = [_BATCHES[product] for product in products if product in _BATCHES]
    step = max(known) * client.streaming * 1000 / facts.window_ms if len(known) == len(products) else None
    return Rate(value=generated * 1000 / facts.window_ms, error=step)


def _via_forwarder(facts: Facts, client: Client) -> bool:
    return not set(client.talks_to) <= {engine.kind for engine in facts.engines}


def _written_together(facts: Facts) -> float:
    """How many events the engines wrote to routers, per one that these and proxies wrote to clients, less one."""
    forwarders = {pid for pid, p in facts.processes.items() if p.role in _FORWARDERS}
    # One that computes prompts only sends a token that the router keeps.
    engines = {pid for engine in facts.engines if engine.kind != "prefill" for pid in engine.http_pids}
    written = _samples(facts.snapshot, _TOKENS_S, _EVENTS, lambda s: s.pid in engines and s.peer_pid in forwarders)
    passed = _samples(
        facts.snapshot, _TOKENS_S, _EVENTS, lambda s: s.pid in forwarders and s.peer_pid not in forwarders
    )
    if not written or not passed or not any(passed):
        return 0.0
    return max(0.0, sum(written) / sum(passed) - 1)


def _samples(snapshot: Snapshot, seconds: int, kind: str, wanted: Callable[[Series], bool]) -> Sequence[float] | None:
    """Sample by sample the sum of these series over the last seconds; None where nobody watched for so long."""
    history, recorder = snapshot.history, snapshot.recorder
    if history is None or recorder is None or not recorder.armed_ms >= seconds * 1000.0:
        return None
    if not history.interval_ms >= LEAST_INTERVAL_MS:
        return None
    samples = max(2, round(seconds * 1000.0 / history.interval_ms))
    found = [0.0] * samples
    for series in history.series:
        if series.kind == kind and wanted(series):
            recent = series.values[-samples:]
            for place, value in enumerate(recent, samples - len(recent)):
                found[place] += 0.0 if math.isnan(value) else value
    return found


def _is_towards(series: Series, client: Client) -> bool:
    if client.pid is not None:
        return series.peer_pid == client.pid
    return series.peer_pid is None and series.subject == client.address
