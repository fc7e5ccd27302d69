"""watch_edges: the edges of the host as the recorder sampled them last, for the live view. Belongs to no capture.

Asks the recorder. Privilege: that of the recorder. Cost: one question. Cannot see: what the recorder cannot.
"""

from __future__ import annotations

from freezeframe.agentd.collectors.contract import Collector, Report, Tier, UnavailableError
from freezeframe.agentd.host import Host, recorder
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import Edge, Snapshot


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over Edge records: ends, requests in flight, rates, ages."""
    report.doing("asking the recorder")
    try:
        answer = recorder.ask(host.recorder, "edges", timeout_s=job.deadline_ms / 1000 * 0.5)
    except recorder.RecorderError as error:
        raise UnavailableError(str(error), error.hint) from error
    report.part(Snapshot(edges=edges_of(answer)))


def edges_of(answer: recorder.Answer) -> tuple[Edge, ...]:
    """Edge records of an answer to "edges"."""
    now_ns = answer.state["now_ns"]

    def age_ms(then_ns: int) -> float | None:
        return max(0.0, (now_ns - then_ns) / 1e6) if then_ns else None

    return tuple(
        Edge(
            client_pid=client or None,
            client_address="" if client else address,
            server_pid=server or None,
            server_address="" if server else address,
            owed=in_flight,
            oldest_owed_age_ms=age_ms(oldest_ns),
            bytes_down_per_s=down,
            bytes_up_per_s=up,
            last_down_age_ms=age_ms(last_down_ns),
            longest_wait_ms=age_ms(waiting_ns),
        )
        for client, server, address, in_flight, oldest_ns, down, up, last_down_ns, waiting_ns in answer.records
    )


WATCH_EDGES = Collector(name="watch_edges", tier=Tier.LOCK_FREE, collect=collect, asks_recorder=True)
