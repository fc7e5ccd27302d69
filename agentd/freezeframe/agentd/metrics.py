"""What the agent tells Prometheus: captures and how they end, what clients wait for, what the recorder costs.

Everything is in memory already; nothing is looked at for a scrape. `serve` answers `GET /metrics`, a few
connections at a time and each for some seconds: prometheus_client's own server takes a thread for every connection for
as long as its client likes, which a front that must answer cannot afford.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector as Source

from freezeframe.agentd import bounded
from freezeframe.agentd.captures import Ended
from freezeframe.agentd.host import Clock
from freezeframe.agentd.schedules.feed import Feed
from freezeframe.agentd.watching import on_path
from freezeframe.judge.model import Edge, Outcome, Process, RecorderState, Verdict

# Edges with the most requests in flight; the rest is one sum.
_EDGES = 100
_CONNECTIONS = 16
_REQUEST_BYTES = 8192
_ANSWER_S = 5.0
_AGAIN_S = 10.0
_BUCKETS = (0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 30.0)
_FELL_SHORT = (Outcome.Status.PARTIAL, Outcome.Status.TIMED_OUT, Outcome.Status.FAILED)
_CODES = tuple(code.name for code in Verdict.Code if code.value)


class Knows(Protocol):
    """What knows the processes of the host (`agentd.engine.Engine`)."""

    def known(self) -> Sequence[Process]:
        """Processes with the roles that their names give them."""


class Metrics:
    """Counts what ends, and tells it with what the feed saw last."""

    def __init__(self, feed: Feed, processes: Knows, clock: Clock = Clock()) -> None:  # noqa: B008 - frozen
        """Nothing counted yet."""
        self._clock = clock
        self.registry = prometheus_client.CollectorRegistry()
        self._captures = prometheus_client.Counter(
            "freezeframe_captures",
            "Captures that ended, by who asked and how: ok, partial, failed, cancelled.",
            ("asked_by", "outcome"),
            registry=self.registry,
        )
        self._durations = prometheus_client.Histogram(
            "freezeframe_capture_duration_seconds",
            "Time of a capture that brought a snapshot, without waiting for its turn.",
            ("asked_by",),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._collectors = prometheus_client.Counter(
            "freezeframe_collector_outcomes",
            "Collectors that ended in a capture, by their status.",
            ("collector", "status"),
            registry=self.registry,
        )
        self._verdicts = prometheus_client.Gauge(
            "freezeframe_verdict",
            "1 for the code of the last capture's verdict, 0 for the others.",
            ("code",),
            registry=self.registry,
        )
        self._judged = prometheus_client.Gauge(
            "freezeframe_last_capture_timestamp_seconds", "When the last capture ended.", registry=self.registry
        )
        for code in _CODES:
            self._verdicts.labels(code).set(0)
        self.registry.register(_Seen(feed, processes))

    def ended(self, ended: Ended) -> None:
        """Count a capture."""
        asked_by = "trigger" if ended.spec.triggered is not None else "schedule" if ended.spec.schedule else "caller"
        outcome = ended.outcome
        if ended.snapshot is not None:
            if any(each.status in _FELL_SHORT for each in ended.snapshot.outcomes):
                outcome = "partial"
            self._durations.labels(asked_by).observe(ended.duration_s)
            for each in ended.snapshot.outcomes:
                self._collectors.labels(each.collector, each.status.name.lower()).inc()
            found = ended.snapshot.verdict.code.name if ended.snapshot.verdict is not None else ""
            for code in _CODES:
                self._verdicts.labels(code).set(code == found)
            self._judged.set(self._clock.wall())
        self._captures.labels(asked_by, outcome).inc()

    def text(self) -> bytes:
        """All of it, in Prometheus' text format."""
        return prometheus_client.generate_latest(self.registry)


class _Seen(Source):
    """What the feed saw last; nothing of what it does not see."""

    def __init__(self, feed: Feed, processes: Knows) -> None:
        self._feed = feed
        self._processes = processes

    def collect(self) -> Iterator[Metric]:
        recorder = self._feed.recorder()
        yield GaugeMetricFamily(
            "freezeframe_recorder_armed", "Whether the recorder sees requests.", value=recorder is not None
        )
        if recorder is not None:
            yield from _of_recorder(recorder)
        names = {
            "longest_wait_s": (
                "freezeframe_longest_wait_seconds",
                "How long the client's request that has waited the longest has got no byte of its answer.",
            ),
            "oldest_s": ("freezeframe_oldest_request_age_seconds", "Age of the oldest request that is owed an answer."),
            "silent_s": (
                "freezeframe_silent_seconds",
                "How long a server with requests in flight has sent its clients nothing.",
            ),
            "backlog": ("freezeframe_backlog_connections", "Connections of the path that wait to be accepted."),
            "stopped": ("freezeframe_stopped_processes", "Processes of the path that are stopped or frozen."),
        }
        values = self._feed.values()
        for name, (metric, told) in names.items():
            if name in values:
                yield GaugeMetricFamily(metric, told, value=values[name])
        if recorder is not None:
            yield _of_edges(self._feed.edges(), self._processes.known())


def _of_recorder(state: RecorderState) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "freezeframe_recorder_cpu_seconds", "CPU time of the recorder's process.", value=state.cpu_ms / 1000.0
    )
    yield GaugeMetricFamily("freezeframe_recorder_locked_bytes", "Kernel memory of its maps.", value=state.locked_bytes)
    yield CounterMetricFamily("freezeframe_recorder_requests", "Requests that it saw.", value=state.requests_seen)
    lost = CounterMetricFamily(
        "freezeframe_recorder_lost", "What it found no room for, since it was armed.", labels=("what",)
    )
    for what in ("requests", "connections", "heads", "processes", "streams"):
        lost.add_metric((what,), getattr(state, f"lost_{what}"))
    yield lost


def _of_edges(edges: Iterable[Edge], known: Sequence[Process]) -> Metric:
    live = on_path(edges, known)
    names = {each.pid: f"{each.role.name.lower().replace('_', '-')} {each.pid}" for each in live.processes}
    found = GaugeMetricFamily(
        "freezeframe_requests_in_flight",
        "Requests in flight, by client and server; the edges beyond a hundred are one sum.",
        labels=("client", "server"),
    )
    for edge in live.edges[:_EDGES]:
        client = edge.client_address if edge.client_pid is None else names[edge.client_pid]
        server = edge.server_address if edge.server_pid is None else names[edge.server_pid]
        found.add_metric((client, server), edge.owed)
    if live.edges[_EDGES:]:
        found.add_metric(("others", "others"), sum(edge.owed for edge in live.edges[_EDGES:]))
    return found


async def serve(address: str, port: int, text: Callable[[], bytes], on_problem: Callable[[str], None]) -> None:
    """Answer scrapes until cancelled; a port that is taken is told, empty once it is had, and tried again."""
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            if connections <= _CONNECTIONS:
                await bounded.wait(_answer(reader, writer, text), _ANSWER_S)
        except (OSError, ValueError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            pass
        finally:
            connections -= 1
            # What a client does not take by now it does not get.
            if writer.transport.get_write_buffer_size():
                writer.transport.abort()
            else:
                writer.close()

    while True:
        try:
            server = await asyncio.start_server(answer, address, port, limit=_REQUEST_BYTES)
        except OSError as error:
            on_problem(f"listening on {address} port {port} for /metrics: {os.strerror(error.errno or 0)}")
            await asyncio.sleep(_AGAIN_S)
            continue
        on_problem("")
        async with server:
            await server.serve_forever()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: Callable[[], bytes]) -> None:
    # LimitOverrunError is no ValueError in the middle of a read: readline turns it into one.
    method, _, rest = (await reader.readline()).partition(b" ")
    while (await reader.readline()).strip():
        pass
    path = rest.partition(b" ")[0].partition(b"?")[0]
    status, body = "200 OK", b""
    if path != b"/metrics":
        status, body = "404 Not Found", b"/metrics\n"
    elif method not in (b"GET", b"HEAD"):
        status, body = "405 Method Not Allowed", b"GET\n"
    else:
        body = text()
    kind = prometheus_client.CONTENT_TYPE_LATEST if status == "200 OK" else "text/plain"
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + (b"" if method == b"HEAD" else body))
    await writer.drain()
