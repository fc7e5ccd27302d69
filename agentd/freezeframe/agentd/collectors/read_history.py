"""read_history: the minutes before the capture: bytes and requests of each edge, CPU, threads and pressure.

Asks the recorder, which samples them all the time. Privilege: that of the recorder. Cost: one question; sampling takes
at most 0.6 % of one CPU. Cannot see: what was before the recorder was armed, and edges that lived for less than two
seconds.
"""

from __future__ import annotations

from freezeframe.agentd.collectors.contract import Collector, Report, Tier, UnavailableError
from freezeframe.agentd.host import Host, recorder
from freezeframe.agentd.jobs import Job
from freezeframe.judge.model import History, Series, Snapshot

_TIMEOUT_S = 3.0
_INTERVAL_MS = 1000.0


def collect(job: Job, host: Host, report: Report) -> None:
    """Hand over one History."""
    report.doing("asking the recorder")
    try:
        answer = recorder.ask(host.recorder, "history", timeout_s=min(_TIMEOUT_S, job.deadline_ms / 1000 * 0.5))
    except recorder.RecorderError as error:
        raise UnavailableError(str(error), error.hint) from error
    series = tuple(
        Series(
            kind=kind,
            subject=subject,
            pid=pid or None,
            peer_pid=peer_pid or None,
            values=tuple(map(float, values)),
            last_nonzero_age_ms=None if last is None else last * 1000.0,
        )
        for kind, subject, pid, peer_pid, values, last in answer.records
    )
    report.part(Snapshot(history=History(series=series, interval_ms=_INTERVAL_MS)))


READ_HISTORY = Collector(name="read_history", tier=Tier.LOCK_FREE, collect=collect, asks_recorder=True)
