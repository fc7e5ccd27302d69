"""Engines: their processes, what their exporters say, and whether anything in them works."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter

from freezeframe.judge.correlate.connections import ENGINE_PARTS
from freezeframe.judge.correlate.facts import Connection, Engine, Gauges
from freezeframe.judge.correlate.gauges import read_gauges
from freezeframe.judge.correlate.stacks import Mains, in_idle_sleep, in_one_batch, rests_in_scheduler
from freezeframe.judge.correlate.thresholds import ASLEEP, LONG_MS, RESTING_WAKES
from freezeframe.judge.model import Metric, Process

Role = Process.Role


def find_engines(
    processes: Sequence[Process],
    process_index: dict[int, int],
    metrics: Sequence[Metric],
    mains: Mains,
    connections: Sequence[Connection],
    window_ms: float,
) -> tuple[Engine, ...]:
    """Group the engine processes by leader."""
    groups: dict[int, list[Process]] = {}
    for process in processes:
        if process.role in ENGINE_PARTS:
            groups.setdefault(process.engine_pid or process.pid, []).append(process)
    told: dict[int, list[tuple[int, Metric]]] = {}
    for index, metric in enumerate(metrics):
        told.setdefault(metric.pid, []).append((index, metric))
    engines = []
    streaming = Counter(c.server_pid for c in connections if c.streaming)
    for leader, members in groups.items():
        http = tuple(p.pid for p in members if p.role in {Role.ENGINE_HTTP, Role.TOKENIZER_WORKER})
        if not http:
            continue
        schedulers = tuple(p.pid for p in members if p.role in {Role.SCHEDULER, Role.WORKER, Role.DP_CONTROLLER})
        kind = next((p.disaggregation for p in members if p.disaggregation), "") or "engine"
        pids = {p.pid for p in members}
        gauges = read_gauges(sorted(chain.from_iterable(told.get(pid, ()) for pid in pids), key=itemgetter(0)))
        streams = sum(streaming[pid] for pid in http)
        wakes = _wakes(members, window_ms)
        asleep = _asleep(members, mains, wakes, window_ms) and not _told_work(gauges, window_ms)
        # While anything comes out, two looks at one place are two batches.
        comes_out = bool(streams or gauges.tokens_delta)
        batch, batch_refs = ("", ()) if comes_out else _batch(members, mains)
        busy, reason, refs = _busy(members, process_index, gauges, streams, asleep, batch, mains, window_ms)
        engines.append(
            Engine(
                pid=leader if leader in http else http[0],
                kind=kind,
                http_pids=http,
                scheduler_pids=schedulers,
                detokenizer_pids=tuple(p.pid for p in members if p.role is Role.DETOKENIZER),
                gauges=gauges,
                busy=busy,
                busy_reason=reason,
                busy_refs=refs,
                wakes_per_s=wakes,
                asleep=asleep and not gauges.tokens_delta,
                batch=batch,
                batch_refs=batch_refs,
                streams=streams,
            )
        )
    return tuple(engines)


def _busy(
    members: Sequence[Process],
    process_index: dict[int, int],
    gauges: Gauges,
    streams: int,
    asleep: bool,
    batch: str,
    mains: Mains,
    window_ms: float,
) -> tuple[bool | None, str, tuple[str, ...]]:
    """Whether the engine works on something.

    True by counters that move or by a scheduler that says that it runs a batch. False only when each scheduler
    provably rests: it used no CPU over the window, slept at both looks and its stack is in no batch, or both looks show
    it in its idle frames.
    CPU time alone proves nothing: an idle scheduler spins. Work that the answers in progress explain is no sign of
    work on anything else.
    """
    if streams and gauges.known and (gauges.running or 0) <= streams and not gauges.waiting and not gauges.handover:
        return None, f"its scheduler knows of no more than the {streams} requests that stream", _metric_refs(gauges)
    if gauges.tokens_delta:
        return True, f"counted {gauges.tokens_delta:.0f} tokens in the window", _metric_refs(gauges)
    schedulers = [p for p in members if p.role in {Role.SCHEDULER, Role.WORKER}]
    # One that runs a batch tells so every few seconds.
    told_long_ago = gauges.age_ms is not None and gauges.age_ms >= LONG_MS
    over = told_long_ago and bool(schedulers) and all(rests_in_scheduler(p.pid, mains) for p in schedulers)
    if gauges.running and not asleep and not over:
        return True, f"says that it runs {gauges.running:.0f} requests", _metric_refs(gauges)
    if batch or not schedulers:
        where = f"its scheduler is in {batch} at both looks" if batch else "no scheduler process was seen"
        return None, where, ()
    reasons, refs = [], []
    for process in schedulers:
        how = rests_in_scheduler(process.pid, mains)
        # Without its stack one that sleeps may as well be in a batch that does not end.
        if how is None and _slept(process, window_ms) and mains.get(process.pid) is not None:
            how = "slept all the window"
        if how is None:
            return None, f"it is not known whether scheduler {process.pid} works", ()
        reasons.append(f"scheduler {process.pid} {how}")
        refs.append(f"processes[{process_index[process.pid]}]")
    return False, ", ".join(reasons), tuple(refs)


def _batch(members: Sequence[Process], mains: Mains) -> tuple[str, tuple[str, ...]]:
    for process in members:
        if process.role not in {Role.SCHEDULER, Role.WORKER}:
            continue
        frame, entry = in_one_batch(process.pid, mains), mains.get(process.pid)
        if frame is not None and entry is not None:
            place = f"{frame.function} ({frame.file.rpartition('/')[2]}:{frame.line})"
            return place, (f"python_threads[{entry[0]}]",)
    return "", ()


def _wakes(members: Sequence[Process], window_ms: float) -> float | None:
    schedulers = [p for p in members if p.role is Role.SCHEDULER]
    counts = [p.threads[0].voluntary_switches_delta for p in schedulers if p.threads]
    known = [count for count in counts if count is not None]
    if window_ms <= 0 or not known or len(known) < len(schedulers):
        return None
    return max(known) * 1000 / window_ms


def _asleep(members: Sequence[Process], mains: Mains, wakes: float | None, window_ms: float) -> bool:
    """Whether every scheduler is in SGLang's idle sleep, a poll of a second, at both looks and in between.

    It sleeps so only when all its queues are empty, so numbers that say otherwise were written before. A scheduler
    that waits for other ranks or for a GPU sleeps too, but not there.
    """
    schedulers = [p for p in members if p.role is Role.SCHEDULER]
    if wakes is None or wakes > RESTING_WAKES:
        return False
    # One that turns without giving the CPU up has no voluntary switch either.
    return all(p.product == "sglang" and in_idle_sleep(p.pid, mains) and _slept(p, window_ms) for p in schedulers)


def _told_work(gauges: Gauges, window_ms: float) -> bool:
    """Whether its schedulers said within the window that they have something: on a busy host a loop turns slowly."""
    of_now = gauges.age_ms is not None and gauges.age_ms < window_ms
    return of_now and bool(gauges.running or gauges.waiting or gauges.handover)


def _slept(process: Process, window_ms: float) -> bool:
    if window_ms <= 0 or process.cpu_ms_delta is None or not process.threads:
        return False
    main = process.threads[0]
    asleep = main.state == "S" and main.state_after in {"S", ""}
    return asleep and process.cpu_ms_delta <= ASLEEP * window_ms * len(process.threads)


def _metric_refs(gauges: Gauges) -> tuple[str, ...]:
    return tuple(f"metrics[{index}]" for index in gauges.indexes[:4])
