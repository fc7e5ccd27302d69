"""trace_requests: requests in flight on every connection of the host, as the recorder saw them begin.

Asks the recorder, which keeps them in the kernel (eBPF on system calls); reads /proc/PID/fd/N to leave out descriptors
that are no sockets. Privilege: that of the recorder (CAP_BPF, CAP_PERFMON). Cost: one question, 5 microseconds per
connection; what tracing costs the processes is measured in tests/bench. Cannot see: what began before the recorder was
armed (sockets show it, "at least"), what io_uring carries, inside TLS (the connection alone), headers of HTTP/2 (its
streams alone).

Records hold: everything of Request but peer_pid, peer_address, upstream and joined_by, which `correlate` adds; source
is "recorder". One look, at the end of the window: what ended before it is not in flight. Besides: RecorderState, and
ConnectionEvent of every edge of the host since the recorder was armed, from tracepoints of TCP.

PARTIAL while something is missing: what found no room within the last minute, sockets that io_uring serves. What was
lost before that is counted in RecorderState, and the outcome is OK.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from freezeframe.agentd.collectors.contract import Collector, Report, Tier, UnavailableError
from freezeframe.agentd.host import Host, recorder
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import ConnectionEnd, ConnectionEvent, RecorderState, Request, Snapshot

# A recorder that has just been started compiles for a second.
_TIMEOUT_S = 3.0
_SIDES = {"server": Request.Side.SERVER, "client": Request.Side.CLIENT}
_BATCH = 500


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over the requests in flight at the end of the window."""
    begin = host.clock.monotonic()
    report.doing("asking the recorder")
    timeout_s = max(0.1, min(_TIMEOUT_S, job.deadline_ms / 1000 * 0.5))
    try:
        answer = recorder.ask(host.recorder, "requests", timeout_s=timeout_s)
        left_s = job.window_ms / 1000 - (host.clock.monotonic() - begin)
        if left_s > 0:
            report.doing("waiting for the second look")
            host.clock.sleep(left_s)
            report.doing("asking the recorder")
            answer = recorder.ask(host.recorder, "requests", timeout_s=timeout_s)
    except recorder.RecorderError as error:
        raise UnavailableError(str(error), error.hint) from error
    requests = [
        each for each in map(_request(answer.state["now_ns"]), answer.records["requests"]) if _is_socket(host, each)
    ]
    resting = tuple(ConnectionEnd(pid=pid, fd=fd) for pid, fd in answer.records["resting"])
    report.part(Snapshot(recorder=replace(state_of(answer.state), resting=resting)))
    now_ns = answer.state["now_ns"]
    report.part(
        Snapshot(connection_events=tuple(_connection_event(each, now_ns) for each in answer.records["connections"]))
    )
    if answer.state["without_sockets"]:
        report.partial(f"closes, resets and retransmissions are not traced: {answer.state['without_sockets']}")
    for start in range(0, len(requests), _BATCH):
        report.part(Snapshot(requests=tuple(requests[start : start + _BATCH])))
    _tell_losses(answer.state, report)


def _request(now_ns: int) -> Any:
    def age_ms(then_ns: int) -> float | None:
        return max(0.0, (now_ns - then_ns) / 1e6) if then_ns else None

    def make(flight: list[Any]) -> Request:
        (
            pid, fd, side, protocol, method, path, request_id, status, began_ns, at_least, in_bytes, out_bytes,
            last_in_ns, last_out_ns, streaming, arriving, peer_closed, closed_ns,
        ) = flight  # fmt: skip
        return Request(
            pid=pid,
            fd=fd,
            side=_SIDES[side],
            protocol=protocol,
            method=method,
            path=path,
            request_id=request_id,
            status=status,
            age_ms=age_ms(began_ns) or 0.0,
            at_least=at_least,
            in_bytes=float(in_bytes),
            out_bytes=float(out_bytes),
            last_in_age_ms=age_ms(last_in_ns),
            last_out_age_ms=age_ms(last_out_ns),
            streaming=streaming,
            arriving=arriving,
            closed_age_ms=age_ms(closed_ns) if peer_closed else None,
            source="recorder",
        )

    return make


def _connection_event(record: list[Any], now_ns: int) -> ConnectionEvent:
    client, server, what, count, last_ns, pid = record
    return ConnectionEvent(
        client=client,
        server=server,
        what=what,
        count=float(count),
        last_age_ms=max(0.0, (now_ns - last_ns) / 1e6),
        pid=pid or None,
    )


def _is_socket(host: Host, request: Request) -> bool:
    """Whether its descriptor is one: a file whose text looks like HTTP is not."""
    try:
        return os.readlink(host.proc(request.pid or 0, "fd", request.fd or 0)).startswith("socket:")
    except PermissionError:
        return True
    except OSError:
        return False


def state_of(state: dict[str, Any]) -> RecorderState:
    """What the recorder says of itself beside "requests", "history" and "edges"."""
    return RecorderState(
        armed_ms=(state["now_ns"] - state["armed_ns"]) / 1e6,
        locked_bytes=float(state["locked_bytes"]),
        processes=state["processes"],
        connections=state["connections"],
        max_connections=state["max_connections"],
        requests_seen=float(state["requests"]),
        responses_seen=float(state["responses"]),
        lost_requests=float(state["lost_requests"]),
        lost_connections=float(state["lost_connections"]),
        lost_heads=float(state["lost_heads"]),
        lost_processes=float(state["lost_processes"]),
        lost_streams=float(state["lost_streams"]),
        evicted=float(state["evicted"]),
        rung=state["rung"],
        io_uring_pids=tuple(state["io_uring_pids"]),
        cpu_ms=state["cpu_s"] * 1000.0,
    )


def _tell_losses(state: dict[str, Any], report: Report) -> None:
    """What is missing now; what was lost since the recorder was armed is in RecorderState."""
    lost = [
        f"{state['lost_lately'][name]} {what}"
        for name, what in (
            ("lost_requests", "requests"),
            ("lost_connections", "connections"),
            ("lost_processes", "processes"),
            ("lost_streams", "HTTP/2 streams"),
        )
        if name in state["lost_lately"]
    ]
    if state["io_uring_pids"]:
        pids = ", ".join(map(str, state["io_uring_pids"][:8]))
        report.partial(f"the sockets of pid {pids} are served by io_uring: what it carries is not seen")
    if lost:
        report.partial(f"the recorder had no room for {', '.join(lost)} within the last minute")


TRACE_REQUESTS = Collector(
    name="trace_requests",
    tier=Tier.LOCK_FREE,
    collect=collect,
    asks_recorder=True,
)
