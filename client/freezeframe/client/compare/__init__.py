"""Two snapshots of one host, held against each other: pure functions of wire messages.

What one of the two did not look at is never called gone or new. May import `freezeframe.v1` and the words of `render`,
never the network or an agent; it judges nothing anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from freezeframe.client.compare import numbers, processes, requests, stacks
from freezeframe.client.compare.headline import headline, still_ones
from freezeframe.client.compare.model import Comparison, Moment, ProcessChange, RequestChange, Unseen
from freezeframe.client.compare.side import KINDS, Side
from freezeframe.client.errors import NotComparableError
from freezeframe.client.render import units
from freezeframe.client.render.values import enum_name
from freezeframe.v1 import snapshot_pb2

_REBOOTED = "the host was started anew in between, {} apart: nothing goes on"

__all__ = ["Comparison", "Given", "compare", "pairs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """One host of one file."""

    snapshot: snapshot_pb2.Snapshot
    file: str
    # Sections of it that could not be read.
    lost: frozenset[str] = frozenset()


def pairs(files: tuple[str, str], hosts: tuple[Sequence[str], Sequence[str]]) -> tuple[tuple[int, int], ...]:
    """Pair the hosts of two files by name, positions of both. Raises NotComparableError when none is in both."""
    others = {name: position for position, name in enumerate(hosts[1])}
    found = tuple((position, others[name]) for position, name in enumerate(hosts[0]) if name in others)
    if not found:
        left, right = (", ".join(name or "an unnamed host" for name in several) for several in hosts)
        raise NotComparableError(
            f"{files[0]} is of {left}, {files[1]} of {right}: nothing in them is the same thing",
            "give two snapshots of one host",
        )
    return found


def compare(first: Given, second: Given) -> Comparison:
    """Compare two snapshots of one host, in the order of their time, whichever way they are given."""
    swapped = _began(first, second) > _began(second, first)
    older, newer = (second, first) if swapped else (first, second)
    before, after = Side(older.snapshot, older.lost), Side(newer.snapshot, newer.lost)
    elapsed_ms = max(0.0, _last_look(newer, older) - _last_look(older, newer))
    rebooted = _rebooted(older, newer)
    asked = () if rebooted else requests.compare(before, after, elapsed_ms)
    programs = processes.anew(before, after) if rebooted else processes.compare(before, after)
    threads = () if rebooted else stacks.compare(before, after)
    # Nothing has the same pid, address or inode across a reboot, but by chance.
    blank = Side(snapshot_pb2.Snapshot())
    metric_counts, metrics = numbers.metrics(blank, blank) if rebooted else numbers.metrics(before, after)
    socket_counts, sockets = numbers.sockets(blank, blank) if rebooted else numbers.sockets(before, after)
    mine = [each for each in asked if each.of_client]
    still = still_ones(mine)
    unseen = _unseen(before, after)
    of_requests = "; ".join(f"{each.why} ({_side(each)})" for each in unseen if each.what == "requests")
    return Comparison(
        headline=_same_snapshot(older, newer)
        or (_REBOOTED.format(units.span(elapsed_ms)) if rebooted else headline(asked, of_requests, elapsed_ms)),
        host=newer.snapshot.meta.host,
        before=_moment(older),
        after=_moment(newer),
        elapsed_ms=elapsed_ms,
        still=len(still),
        nothing_moved=bool(mine) and len(still) == len(mine),
        verdict_changed=_finding(older) != _finding(newer),
        remarks=_remarks(older, newer, swapped=swapped),
        unseen=unseen,
        request_counts=_counts(asked, "same", "gone", "new", "unclear"),
        requests=asked,
        process_counts=_counts(programs, "same", "changed", "restarted", "gone", "new", "unclear"),
        processes=programs,
        stack_counts=stacks.count(threads),
        stacks=tuple(each for each in threads if each.state != "same"),
        metric_counts=metric_counts,
        metrics=metrics,
        socket_counts=socket_counts,
        sockets=sockets,
    )


def _counts(changes: Sequence[RequestChange | ProcessChange], *states: str) -> dict[str, int]:
    counts = Counter(change.state for change in changes)
    return {state: counts[state] for state in states}


def _rebooted(older: Given, newer: Given) -> bool:
    boots = older.snapshot.meta.boot_id, newer.snapshot.meta.boot_id
    return bool(all(boots)) and boots[0] != boots[1]


def _began(given: Given, other: Given) -> float:
    """Start, milliseconds: by the clock that nobody sets where it is the same boot's, else by the wall clock."""
    meta, beside = given.snapshot.meta, other.snapshot.meta
    if meta.boot_id and meta.boot_id == beside.boot_id and meta.boottime_ms and beside.boottime_ms:
        return meta.boottime_ms
    try:
        return datetime.fromisoformat(meta.started_at.replace("Z", "+00:00")).timestamp() * 1000.0
    except ValueError:
        return 0.0


def _last_look(given: Given, other: Given) -> float:
    return _began(given, other) + given.snapshot.meta.window_ms


def _same_snapshot(older: Given, newer: Given) -> str:
    ids = older.snapshot.meta.snapshot_id, newer.snapshot.meta.snapshot_id
    return f"both files are the same snapshot, {ids[0]}" if ids[0] and ids[0] == ids[1] else ""


def _finding(given: Given) -> tuple[object, ...]:
    verdict = given.snapshot.verdict
    return (verdict.code, verdict.hop, sorted(verdict.holder_pids), verdict.holder_address)


def _moment(given: Given) -> Moment:
    meta, verdict = given.snapshot.meta, given.snapshot.verdict
    return Moment(
        snapshot_id=meta.snapshot_id,
        file=given.file,
        started_at=meta.started_at,
        window_ms=meta.window_ms,
        code=enum_name(verdict, "code"),
        confidence=enum_name(verdict, "confidence"),
        hop=verdict.hop,
        holder_pids=tuple(verdict.holder_pids),
        summary=verdict.summary,
    )


def _unseen(before: Side, after: Side) -> tuple[Unseen, ...]:
    return tuple(
        Unseen(what=kind, missing_in=name, why=why)
        for kind in KINDS
        for name, side in (("before", before), ("after", after))
        if (why := side.unseen(kind))
    )


def _side(unseen: Unseen) -> str:
    return "the older one" if unseen.missing_in == "before" else "the newer one"


def _remarks(older: Given, newer: Given, *, swapped: bool) -> tuple[str, ...]:
    """Say what has to be known to read the rest."""
    found = []
    if swapped:
        found.append(f"The newer one was given first: what is told goes from {older.file} to {newer.file}.")
    windows = older.snapshot.meta.window_ms, newer.snapshot.meta.window_ms
    if windows[0] != windows[1]:
        looks = " and ".join(f"{units.span(each)}" if each else "one look" for each in windows)
        found.append(f"Their windows differ ({looks}): what each saw move within its own is not comparable.")
    asked = [tuple(given.snapshot.meta.pids) for given in (older, newer)]
    if asked[0] != asked[1]:
        told = " and ".join(f"pids {', '.join(map(str, pids))}" if pids else "all of the path" for pids in asked)
        found.append(f"They looked at different processes ({told}).")
    if older.snapshot.meta.agent_version != newer.snapshot.meta.agent_version:
        versions = [given.snapshot.meta.agent_version or "unknown" for given in (older, newer)]
        found.append(f"Their agents are different versions ({versions[0]} and {versions[1]}).")
    found += [
        f"{given.file} is damaged: {', '.join(sorted(given.lost))} cannot be compared."
        for given in (older, newer)
        if given.lost
    ]
    return tuple(found)
