"""What belongs to a host and not to one of its processes: outcomes, GPUs, its kernel's log, its state."""

from __future__ import annotations

from collections.abc import Sequence

from freezeframe.judge.correlate.facts import Place
from freezeframe.judge.correlate.joined import Joined
from freezeframe.judge.model import Meta, Outcome, Snapshot

Status = Outcome.Status


def find_places(snapshot: Snapshot, joined: Joined | None) -> dict[int, Place]:
    """Hosts by their number in pids."""
    if joined is None:
        return {0: _place("", snapshot, {})}
    return {
        number: _place((part.meta or Meta()).host, part, {kind: at[number - 1] for kind, at in joined.first.items()})
        for number, part in enumerate(joined.parts, 1)
    }


def _place(name: str, part: Snapshot, first: dict[str, int]) -> Place:
    gpus, events = first.get("gpus", 0), first.get("kernel_events", 0)
    return Place(
        name=name,
        host=part.host,
        outcomes={outcome.collector: outcome for outcome in part.outcomes},
        first_outcome=first.get("outcomes", 0),
        gpus=range(gpus, gpus + len(part.gpus)),
        kernel_events=range(events, events + len(part.kernel_events)),
    )


def find_outcomes(parts: Sequence[Snapshot]) -> dict[str, Outcome]:
    """Outcome by collector: the host's own, or of several hosts of which processes one of them missed something."""
    known = [{outcome.collector: outcome for outcome in part.outcomes} for part in parts]
    if len(known) == 1:
        return known[0]
    names = dict.fromkeys(name for outcomes in known for name in outcomes)
    return {name: _together(name, [outcomes.get(name) for outcomes in known], parts) for name in names}


def _together(name: str, outcomes: Sequence[Outcome | None], parts: Sequence[Snapshot]) -> Outcome:
    told = [outcome for outcome in outcomes if outcome is not None]
    statuses = {outcome.status for outcome in told}
    missed: list[int] = []
    for outcome, part in zip(outcomes, parts, strict=True):
        if outcome is None or outcome.status is Status.OK:
            continue
        # Something that belongs to no single process of this host is missing of each of them.
        some = outcome.status is Status.PARTIAL and outcome.pids_missed
        missed += outcome.pids_missed if some else (process.pid for process in part.processes)
    return Outcome(
        collector=name,
        status=statuses.pop() if len(statuses) == 1 else Status.PARTIAL,
        detail="; ".join(dict.fromkeys(outcome.detail for outcome in told if outcome.detail)),
        duration_ms=max(outcome.duration_ms for outcome in told),
        items=sum(outcome.items for outcome in told),
        pids_missed=tuple(dict.fromkeys(missed)),
    )
