"""Five lines to paste into a chat."""

from __future__ import annotations

from freezeframe.client.render import units
from freezeframe.client.render.guard import clean
from freezeframe.client.render.values import enum_name, holders
from freezeframe.v1 import snapshot_pb2

_LONGEST = 400


def render(snapshot: snapshot_pb2.Snapshot, file: str | None = None, *, ascii_only: bool = False) -> str:
    """Say code, sentence, path, who it is not and who goes astray, and what was not seen: five lines."""
    lines = (
        _head(snapshot),
        _sentence(snapshot),
        _path(snapshot, ascii_only),
        _aside(snapshot),
        _unseen(snapshot, file),
    )
    ellipsis = "..." if ascii_only else "…"
    return "".join(f"{short(clean(line), ellipsis)}\n" for line in lines)


def _head(snapshot: snapshot_pb2.Snapshot) -> str:
    verdict = snapshot.verdict
    meta = snapshot.meta
    holder = holders(verdict)
    return (
        f"{enum_name(verdict, 'code')} ({enum_name(verdict, 'confidence').lower()} confidence) on {meta.host}"
        f" at {meta.started_at}" + (f", held by {verdict.hop or 'a process'} {holder}".rstrip() if holder else "")
    )


def _sentence(snapshot: snapshot_pb2.Snapshot) -> str:
    return snapshot.verdict.summary or "The snapshot carries no verdict."


def _path(snapshot: snapshot_pb2.Snapshot, ascii_only: bool) -> str:
    arrow = " > " if ascii_only else " ▸ "
    hops = [f"[{hop.name} {hop.in_flight}]" if hop.holds else f"{hop.name} {hop.in_flight}" for hop in snapshot.hops]
    ages = [hop.oldest_age_ms for hop in snapshot.hops if hop.HasField("oldest_age_ms")]
    oldest = f"; oldest request at least {units.long_age(max(ages))}" if ages else ""
    return (arrow.join(hops) or "No hop was found") + oldest


def _aside(snapshot: snapshot_pb2.Snapshot) -> str:
    ruled_out = ", ".join(each.hop for each in snapshot.verdict.ruled_out) or "nothing"
    strays = [
        f"{each.client}"
        + (f" (pid {each.pid})" if each.HasField("pid") and each.client != f"pid {each.pid}" else "")
        + (f" {units.rate(each.bytes_per_s)}" if each.HasField("bytes_per_s") else "")
        for each in snapshot.verdict.attribution
        if each.stray
    ]
    return f"ruled out: {ruled_out}; stray: {', '.join(strays) or 'none found'}"


def _unseen(snapshot: snapshot_pb2.Snapshot, file: str | None) -> str:
    unseen = [
        f"{each.collector} {enum_name(each, 'status')}"
        for each in snapshot.outcomes
        if enum_name(each, "status") != "OK"
    ]
    return f"not seen: {', '.join(unseen) or 'nothing is missing'}; file: {file or 'not saved'}"


def short(line: str, ellipsis: str) -> str:
    """Cut a line that a chat would fold."""
    return line if len(line) <= _LONGEST else line[: _LONGEST - len(ellipsis)] + ellipsis
