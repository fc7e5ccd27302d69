"""ROUTER_NO_WORKERS: the router refuses every request at once, since it takes no worker for usable.

Proof by the router's own gauges: of one kind of worker (prefill, decode, or all where kinds are not known) each one is
unhealthy, or its circuit breaker is open. An open breaker closes by itself only when a request tries it, so it counts
only while requests are refused: the counter of exhausted retries moved in the window, or the log told of it in the
last minute. HIGH with such refusals; MEDIUM by health alone, and then only of a router that is past its start.

No request hangs in this state, so it explains none.
Lookalikes: one of several workers out; a breaker half open; workers that were removed (-1); a router without workers
yet, which is still starting.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from freezeframe.judge.correlate.facts import Facts
from freezeframe.judge.correlate.joined import addresses, number_of
from freezeframe.judge.correlate.thresholds import STARTING_MS
from freezeframe.judge.model import Confidence, Evidence, Verdict
from freezeframe.judge.verdicts._steps import flags, known, step
from freezeframe.judge.verdicts._words import evidence

Level = Confidence.Level

_HEALTH = frozenset({"smg_worker_health", "sgl_router_worker_health"})
_BREAKER = frozenset({"smg_worker_cb_state", "sgl_router_cb_state", "sgl_router_worker_cb_state"})
_REFUSED = frozenset({"smg_worker_retries_exhausted_total", "sgl_router_retries_exhausted_total"})
METRICS = _HEALTH | _BREAKER | _REFUSED
# Patterns of the router's log that tell of refusals.
_LOGGED = frozenset({"router_no_pair"})
_RECENT_MS = 60_000.0

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_OPEN, _REMOVED = 1, -1
# Workers that are asked in the steps.
_ASKED = 3


@dataclass(slots=True)
class _Worker:
    url: str
    healthy: bool | None = None
    breaker: int | None = None
    refs: tuple[str, ...] = ()


def rule(facts: Facts) -> tuple[Verdict, ...]:
    """One verdict per router."""
    return tuple(v for router in facts.routers if (v := _router(facts, router)) is not None)


def _router(facts: Facts, router: int) -> Verdict | None:
    groups: dict[str, list[_Worker]] = {}
    homes = addresses(facts.snapshot.sockets)
    for worker in _workers(facts, router):
        groups.setdefault(_kind(facts, router, worker.url, homes), []).append(worker)
    refused = _refusals(facts, router)
    starting = facts.processes[router].age_ms < STARTING_MS
    for kind, workers in groups.items():
        sick = [w for w in workers if w.healthy is False]
        out = sick if not refused else [w for w in workers if w.healthy is False or w.breaker == _OPEN]
        if len(out) < len(workers) or (starting and not any(w.breaker == _OPEN for w in out)):
            continue
        how = "unhealthy" if len(sick) == len(out) else "behind an open circuit breaker"
        of = f"{kind} worker" if kind else "worker"
        return Verdict(
            code=Verdict.Code.ROUTER_NO_WORKERS,
            hop="router",
            holder_pids=(router,),
            summary=f"The router (pid {router}) has no usable {of}: all {len(out)} are {how}. It refuses all.",
            confidence=Level.HIGH if refused else Level.MEDIUM,
            evidence=(*(_state(w) for w in out), *refused),
            next_steps=(
                *(
                    step(
                        f"curl -sS -m 2 {shlex.quote(f'{w.url}/model_info')}",
                        "if it answers, the breaker or the health check is what refuses",
                    )
                    for w in out[:_ASKED]
                ),
                flags(router, "its breaker: it tries again after --cb-timeout-duration-secs, 60 s by default"),
                known("no usable worker though they live: an open breaker, or one that is listed and gone"),
            ),
        )
    return None


def _workers(facts: Facts, router: int) -> list[_Worker]:
    found: dict[str, _Worker] = {}
    for index, metric in facts.metrics_of(router):
        url = dict(metric.labels).get("worker", "")
        if not url or metric.name not in _HEALTH | _BREAKER:
            continue
        worker = found.setdefault(url, _Worker(url))
        worker.refs = (*worker.refs, f"metrics[{index}]")
        if metric.name in _HEALTH:
            worker.healthy = metric.value > 0
        else:
            worker.breaker = round(metric.value)
    return [worker for worker in found.values() if worker.breaker != _REMOVED]


def _kind(facts: Facts, router: int, url: str, homes: Mapping[int, frozenset[str]]) -> str:
    host, _, port = url.rpartition("://")[2].partition("/")[0].rpartition(":")
    several = len(facts.places) > 1
    for engine in facts.engines:
        number = number_of(engine.pid)
        own = host.strip("[]") in _LOOPBACK and number == number_of(router)
        if several and not own and host.strip("[]") not in homes.get(number, ()):
            continue
        ports = {str(p) for pid in engine.http_pids for p in facts.processes[pid].listening_ports}
        ports |= {str(item.port) for item in facts.listeners if item.pid in engine.http_pids}
        if port in ports:
            return engine.kind if engine.kind != "engine" else ""
    return ""


def _state(worker: _Worker) -> Evidence:
    parts = []
    if worker.healthy is False:
        parts.append("unhealthy")
    if worker.breaker == _OPEN:
        parts.append("breaker open")
    return evidence(f"{worker.url}: {', '.join(parts)}", *worker.refs)


def _refusals(facts: Facts, router: int) -> tuple[Evidence, ...]:
    counted = tuple(
        evidence(f"{metric.name} rose by {metric.delta:.0f} in the window", f"metrics[{index}]")
        for index, metric in facts.metrics_of(router)
        if metric.name in _REFUSED and metric.delta
    )
    logged = tuple(
        evidence(f"its log: {finding.meaning or finding.pattern}, {finding.count} times", f"log_findings[{index}]")
        for index, finding in enumerate(facts.snapshot.log_findings)
        if finding.pid == router
        and finding.pattern in _LOGGED
        and finding.last_age_ms is not None
        and finding.last_age_ms <= _RECENT_MS
    )
    return (*counted, *logged)
