"""What is not known, and why: sentences for the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from freezeframe.judge.model import Meta, Outcome, Snapshot

Status = Outcome.Status

_WORDS = {
    Status.PARTIAL: "is incomplete",
    Status.TIMED_OUT: "ran out of time",
    Status.UNAVAILABLE: "is not available here",
    Status.FAILED: "failed",
    Status.SKIPPED: "was left out",
}


# Hosts that are named where several lack the same.
_NAMED = 3


def find_unknowns(parts: Sequence[Snapshot], clients: Sequence[int], window_ms: float) -> tuple[str, ...]:
    """Say which collectors did not bring all, and what none can bring; not what was left out on purpose.

    `parts` is the snapshot of each host.
    """
    lacking: dict[str, list[str]] = {}
    for part in parts:
        for sentence in _of_outcomes(part.outcomes):
            lacking.setdefault(sentence, []).append((part.meta or Meta()).host)
    found = [
        sentence if len(parts) == 1 else f"{_named(hosts, len(parts))}: {sentence}"
        for sentence, hosts in lacking.items()
    ]
    if window_ms <= 0:
        found.append("one look: what moved is not known, and an answer that stalled looks like an idle connection")
    for process in (process for part in parts for process in part.processes):
        if process.pid in clients and process.runtime == "go":
            found.append(
                f"pid {process.pid} is a Go program: what waits in it for a connection of its own pool cannot be seen"
            )
        if process.memory_blocked:
            found.append(f"the memory of pid {process.pid} was not read: a read of it was stuck")
    return tuple(found)


def _of_outcomes(outcomes: Sequence[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        if outcome.status in {Status.OK, Status.UNSPECIFIED}:
            continue
        if outcome.status is Status.SKIPPED and not outcome.detail.startswith("quarantined"):
            continue
        detail = f": {outcome.detail}" if outcome.detail else ""
        yield f"{outcome.collector} {_WORDS[outcome.status]}{detail}"


def _named(hosts: Sequence[str], of: int) -> str:
    if len(hosts) == of:
        return "every host"
    more = len(hosts) - _NAMED
    return ", ".join(hosts[:_NAMED]) + (f" and {more} more" if more > 0 else "")
