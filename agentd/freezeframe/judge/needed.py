"""What the judge reads of a host: of a fleet of hundreds the rest is neither unpacked nor in memory.

A snapshot of a node with eight GPUs is some megabytes: stacks and kernel stacks of thousands of threads, what happened
to connections, series of 15 minutes. No rule looks at them. This is the one place that says what rules look at: when
one looks at more, it is added here; the replay of hosts (tests/replay/test_hosts.py) fails until it is.

Frames and labels that are the same in hundreds of records of hundreds of hosts are in memory once.

Records that stay are whole, but for processes, of whose threads beside the main one only the number is known, unless a
lock waits for the process, and for tasks, of whose chains the frame is left in which they wait. Records have other
positions than in the host's own snapshot; `Needed.positions` leads back.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from freezeframe.judge import model, wire
from freezeframe.judge.correlate.gauges import ACTIVE, COUNTERS, QUEUES
from freezeframe.judge.correlate.rates import KINDS, LEAST_INTERVAL_MS, LONGEST_S
from freezeframe.judge.correlate.stacks import waits_before_sending
from freezeframe.judge.correlate.tasks import where
from freezeframe.judge.model import AsyncioTask, Frame, History, Metric, Process, PythonThread, Snapshot, Thread
from freezeframe.judge.verdicts._proof import WORKER
from freezeframe.judge.verdicts.router_no_workers import METRICS as OF_WORKERS
from freezeframe.judge.verdicts.router_queue import QUEUED as OF_ROUTERS
from freezeframe.v1 import host_pb2, metric_pb2, process_pb2, snapshot_pb2, stack_pb2

# Sections that no rule reads, and those that are made anew.
UNREAD = frozenset(
    {
        "native_threads", "profile", "futex_waits", "futex_addresses", "connection_events",
        "edges", "hops", "ranks", "verdict", "findings",
    }
)  # fmt: skip
# Names of gauges and counters that rules read.
_METRICS = QUEUES | COUNTERS | ACTIVE | OF_WORKERS | OF_ROUTERS | {WORKER}
_UNREAD_OF_TASKS: tuple[Any, ...] = (
    "frames", "frames_after", "coroutine", "loop", "awaits", "awaits_address", "awaits_state", "awaited_by",
    "engine_request_id", "first_seen_age_ms",
)  # fmt: skip
# "sockets[12]", at the beginning of a reference.
_POSITION = re.compile(r"(?<!\S)(\w+)\[(\d+)\]")
# Stands for each thread of which nothing but its being there counts.
_SOME_THREAD = Thread()


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """What of one host's snapshot is judged."""

    snapshot: Snapshot
    # Kind of record -> position in the host's own snapshot of each that is here; of other kinds all are.
    positions: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def own(self, references: str) -> str:
        """References into this snapshot as references into the host's own."""
        return _POSITION.sub(self._moved, references)

    def _moved(self, found: re.Match[str]) -> str:
        positions = self.positions.get(found[1])
        return found[0] if positions is None else f"{found[1]}[{positions[int(found[2])]}]"


def needed(message: snapshot_pb2.Snapshot) -> Needed:
    """Take it out of a snapshot, which stays as it is. Raises whatever a file of anybody's makes of it."""
    positions = {
        "sockets": array("I", (i for i, each in enumerate(message.sockets) if each.family == "tcp")),
        "python_threads": array("I", (i for i, each in enumerate(message.python_threads) if _counts(each))),
        "metrics": array("I", _metrics(message)),
    }
    values: dict[str, Any] = {}
    for described, value in message.ListFields():
        name = described.name
        if name in UNREAD:
            continue
        if name == "processes":
            waited_for = frozenset(pid for lock in message.locks for pid in lock.releaser_pids)
            values[name] = tuple(_process(each, waited_for) for each in message.processes)
        elif name == "asyncio_tasks":
            values[name] = tuple(map(_task, message.asyncio_tasks))
        elif name == "metrics":
            values[name] = tuple(_metric(message.metrics[i]) for i in positions[name])
        elif name == "history":
            values[name] = _history(message.history)
        elif wire.is_repeated(described):
            kept = [value[i] for i in positions[name]] if name in positions else value
            values[name] = tuple(_decoded(each) for each in kept)
        else:
            values[name] = _decoded(value)
    return Needed(snapshot=Snapshot(**values), positions=positions)


def _decoded(message: Any) -> Any:
    return wire.from_message(message, getattr(model, message.DESCRIPTOR.name))


def _counts(thread: Any) -> bool:
    """Whether it is a main thread, or one of a client that waits to send: message and model name fields alike."""
    main = thread.name == "MainThread" or thread.tid == thread.pid
    return main or waits_before_sending(cast("PythonThread", thread)) is not None


def _metrics(message: snapshot_pb2.Snapshot) -> Iterator[int]:
    """Gauges and counters that rules know by name, and of each process one that says what kind of engine it is."""
    kinds = {metric.pid: i for i, metric in enumerate(message.metrics) if "engine_type" in metric.labels}
    telling = frozenset(kinds.values())
    for i, metric in enumerate(message.metrics):
        if metric.name in _METRICS or i in telling:
            yield i


def _process(message: process_pb2.Process, waited_for: frozenset[int]) -> Process:
    others = len(message.threads) - 1
    if others < 1 or message.pid in waited_for:
        return wire.from_message(message, Process)
    light = process_pb2.Process()
    light.CopyFrom(message)
    del light.threads[1:]
    process = wire.from_message(light, Process)
    return replace(process, threads=(*process.threads, *[_SOME_THREAD] * others))


def _task(message: stack_pb2.AsyncioTask) -> AsyncioTask:
    frame = where(cast("AsyncioTask", message))
    light = stack_pb2.AsyncioTask()
    light.CopyFrom(message)
    for name in _UNREAD_OF_TASKS:
        light.ClearField(name)
    task = wire.from_message(light, AsyncioTask)
    return task if frame is None else replace(task, frames=_waits_in(frame.function, frame.file, frame.line))


@functools.lru_cache(maxsize=1024)
def _waits_in(function: str, file: str, line: int) -> tuple[Frame, ...]:
    """Where tasks wait by the hundred, as one value."""
    return (Frame(function=function, file=file, line=line),)


def _metric(message: metric_pb2.Metric) -> Metric:
    metric = wire.from_message(message, Metric)
    return replace(metric, labels=_once(metric.labels))


@functools.lru_cache(maxsize=4096)
def _once(labels: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Labels that are equal, as those of all metrics of a process, as one value."""
    return labels


def _history(message: host_pb2.History) -> History:
    """The last minute of what clients got."""
    known = message.interval_ms >= LEAST_INTERVAL_MS
    samples = max(2, round(LONGEST_S * 1000.0 / message.interval_ms)) if known else 0
    light = host_pb2.History(interval_ms=message.interval_ms)
    for series in message.series:
        if series.kind in KINDS:
            own = light.series.add()
            own.CopyFrom(series)
            del own.values[: max(0, len(own.values) - samples)]
    return wire.from_message(light, History)
