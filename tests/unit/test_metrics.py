"""What Prometheus is told, read back by its own parser; the endpoint over a real socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from prometheus_client.parser import text_string_to_metric_families

from freezeframe.agentd import metrics
from freezeframe.agentd.capture import CaptureSpec
from freezeframe.agentd.captures import Ended
from freezeframe.agentd.host import Clock
from freezeframe.agentd.metrics import Metrics
from freezeframe.agentd.schedules.feed import Feed
from freezeframe.agentd.workers import Workers
from freezeframe.judge.model import Edge, Process, RecorderState, Snapshot, Triggered
from tests.support.filled import canned_snapshot
from tests.support.waiting import eventually

ADDRESS = "127.0.0.1"

Role = Process.Role


class Known:
    def known(self) -> Sequence[Process]:
        return Process(pid=2, role=Role.ROUTER), Process(pid=3, role=Role.ENGINE_HTTP), Process(pid=9)

    async def warm(self) -> None:
        pass


class Told:
    def __init__(self) -> None:
        self.now = 100.0
        clock = Clock(monotonic=lambda: self.now, wall=lambda: 1000.0)
        self.feed = Feed(workers=Workers(), processes=Known(), clock=clock)
        self.metrics = Metrics(self.feed, Known(), clock)

    def samples(self) -> dict[str, dict[tuple[str, ...], float]]:
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.metrics.text().decode()):
            for each in family.samples:
                found.setdefault(each.name, {})[tuple(each.labels.values())] = each.value
        return found


async def test_captures_by_who_asked_and_how_they_ended() -> None:
    told = Told()
    ok = canned_snapshot()
    scheduled, triggered = CaptureSpec(schedule="a"), CaptureSpec(schedule="b", triggered=Triggered())
    for spec, outcome, snapshot in (
        (CaptureSpec(), "ok", ok),
        (CaptureSpec(), "cancelled", None),
        (scheduled, "failed", None),
        (triggered, "ok", Snapshot(outcomes=ok.outcomes[:1], verdict=ok.verdict)),
    ):
        told.metrics.ended(Ended(spec=spec, outcome=outcome, duration_s=1.5, snapshot=snapshot))
    samples = told.samples()
    assert samples["freezeframe_captures_total"] == {
        ("caller", "partial"): 1.0,
        ("caller", "cancelled"): 1.0,
        ("schedule", "failed"): 1.0,
        ("trigger", "ok"): 1.0,
    }
    assert samples["freezeframe_capture_duration_seconds_sum"] == {("caller",): 1.5, ("trigger",): 1.5}
    assert samples["freezeframe_collector_outcomes_total"]["snapshot_processes", "ok"] == 2.0
    verdicts = samples["freezeframe_verdict"]
    assert {code for (code,), value in verdicts.items() if value} == {"ROUTER_HOLDS"}
    assert ("UNDETERMINED",) in verdicts
    assert ("UNSPECIFIED",) not in verdicts
    assert samples["freezeframe_last_capture_timestamp_seconds"] == {(): 1000.0}


async def test_what_the_feed_saw_and_nothing_once_it_is_old() -> None:
    told = Told()
    edges = (
        Edge(
            client_pid=1,
            server_pid=2,
            owed=30,
            oldest_owed_age_ms=9000.0,
            longest_wait_ms=7000.0,
            last_down_age_ms=7000.0,
        ),
        Edge(client_address="10.0.0.7", server_pid=2, owed=1, oldest_owed_age_ms=100.0, longest_wait_ms=100.0),
        Edge(client_pid=2, server_pid=3, owed=30, oldest_owed_age_ms=99_000.0, longest_wait_ms=99_000.0),
    )
    state = RecorderState(cpu_ms=1500.0, locked_bytes=4096.0, requests_seen=60.0, lost_requests=2.0)
    told.feed.take(Snapshot(edges=edges, recorder=state), lambda _values, _now, _told: None, asyncio.Event())
    samples = told.samples()
    assert samples["freezeframe_recorder_armed"] == {(): 1.0}
    assert samples["freezeframe_recorder_cpu_seconds_total"] == {(): 1.5}
    assert samples["freezeframe_recorder_lost_total"] == {
        ("requests",): 2.0, ("connections",): 0.0, ("heads",): 0.0, ("processes",): 0.0, ("streams",): 0.0,
    }  # fmt: skip
    assert samples["freezeframe_longest_wait_seconds"] == {(): 7.0}
    assert samples["freezeframe_oldest_request_age_seconds"] == {(): 9.0}
    assert samples["freezeframe_requests_in_flight"] == {
        ("client 1", "router 2"): 30.0, ("10.0.0.7", "router 2"): 1.0, ("router 2", "engine-http 3"): 30.0,
    }  # fmt: skip
    told.now += 10
    samples = told.samples()
    assert samples["freezeframe_recorder_armed"] == {(): 0.0}
    assert "freezeframe_longest_wait_seconds" not in samples
    assert "freezeframe_requests_in_flight" not in samples


@asynccontextmanager
async def endpoint() -> AsyncIterator[int]:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        port = int(probe.getsockname()[1])
    problems: list[str] = ["not yet"]

    def on_problem(sentence: str) -> None:
        problems[:] = [sentence]

    task = asyncio.ensure_future(metrics.serve(ADDRESS, port, Told().metrics.text, on_problem))
    try:
        await eventually(lambda: problems == [""])
        yield port
    finally:
        task.cancel()
        await asyncio.wait([task])


async def asked(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(ADDRESS, port)
    try:
        writer.write(request)
        return await reader.read()
    finally:
        writer.close()


async def test_the_endpoint_answers_metrics_and_nothing_else() -> None:
    async with endpoint() as port:
        head, _, body = (await asked(port, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=")
        assert f"Content-Length: {len(body)}".encode() in head
        assert b"freezeframe_recorder_armed 0.0\n" in body
        assert (await asked(port, b"HEAD /metrics?x HTTP/1.0\r\n\r\n")).partition(b"\r\n\r\n")[2] == b""
        assert (await asked(port, b"GET /etc/passwd HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 404 Not Found\r\n")
        assert (await asked(port, b"POST /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
        # Too long a line, and no HTTP at all.
        assert await asked(port, b"GET /" + b"x" * 100_000) == b""
        assert (await asked(port, b"\0\n\n")).startswith(b"HTTP/1.1 404")


async def test_silent_connections_cost_no_other_its_answer() -> None:
    async with endpoint() as port:
        silent = [await asyncio.open_connection(ADDRESS, port) for _ in range(8)]
        assert (await asked(port, b"GET /metrics HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
        # After five seconds each is let go.
        for reader, writer in silent:
            assert await asyncio.wait_for(reader.read(), 60) == b""
            writer.close()


async def test_a_port_that_is_taken_is_told() -> None:
    with socket.socket() as taken:
        taken.bind((ADDRESS, 0))
        taken.listen()
        port = taken.getsockname()[1]
        problems: list[str] = []
        task = asyncio.ensure_future(metrics.serve(ADDRESS, port, lambda: b"", problems.append))
        await eventually(lambda: bool(problems))
        task.cancel()
        await asyncio.wait([task])
        assert problems == [f"listening on 127.0.0.1 port {port} for /metrics: Address already in use"]
