"""What is not known, and why: sentences for the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from freezeframe.judge.model import Outcome, Process

Status = Outcome.Status

_WORDS = {
    Status.PARTIAL: "is incomplete",
    Status.TIMED_OUT: "ran out of time",
    Status.UNAVAILABLE: "is not available here",
    Status.FAILED: "failed",
    Status.SKIPPED: "was left out",
}


def find_unknowns(
    outcomes: Sequence[Outcome], processes: Sequence[Process], clients: Sequence[int], window_ms: float
) -> tuple[str, ...]:
    """Say which collectors did not bring all, and what none can bring; not what was left out on purpose."""
    found = []
    for outcome in outcomes:
        if outcome.status in {Status.OK, Status.UNSPECIFIED}:
            continue
        if outcome.status is Status.SKIPPED and not outcome.detail.startswith("quarantined"):
            continue
        detail = f": {outcome.detail}" if outcome.detail else ""
        found.append(f"{outcome.collector} {_WORDS[outcome.status]}{detail}")
    if window_ms <= 0:
        found.append("one look: what moved is not known, and an answer that stalled looks like an idle connection")
    for process in processes:
        if process.pid in clients and process.runtime == "go":
            found.append(
                f"pid {process.pid} is a Go program: what waits in it for a connection of its own pool cannot be seen"
            )
        if process.memory_blocked:
            found.append(f"the memory of pid {process.pid} was not read: a read of it was stuck")
    return tuple(found)
