"""The list of snapshots that an agent keeps."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from freezeframe.client.render import units
from freezeframe.client.render.document import Column, Paragraph, Section, Table
from freezeframe.client.render.guard import clean
from freezeframe.client.render.values import NOTHING, enum_name
from freezeframe.v1 import meta_pb2, service_pb2, verdict_pb2

NONE_KEPT = "The agent keeps no snapshot."


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which snapshots; None = whichever."""

    since: datetime | None = None
    until: datetime | None = None
    # In what asked for it: "snap", "schedule NAME", "trigger CONDITION".
    trigger: str | None = None
    schedule: str | None = None
    # Code, in either case.
    verdict: str | None = None
    # In its note.
    note: str | None = None

    def something(self) -> bool:
        """Whether anything is asked for."""
        return self != Wanted()


def chosen(answer: service_pb2.ListSnapshotsResponse, wanted: Wanted, limit: int) -> service_pb2.ListSnapshotsResponse:
    """Leave what is wanted, at most `limit`; one that cannot be read is wanted only where nothing is asked for."""
    kept = [each for each in answer.snapshots if not wanted.something() or _matches(each, wanted)]
    return service_pb2.ListSnapshotsResponse(snapshots=kept[:limit])


def unknown_code(wanted: Wanted) -> str:
    """Say that this client knows no such code, and which ones there are; empty where it does or none is asked for."""
    known = [name for name, number in verdict_pb2.Verdict.Code.items() if number]
    asked = (wanted.verdict or "").upper()
    if not asked or asked in known:
        return ""
    near = difflib.get_close_matches(asked, known, n=1)
    instead = f"did you mean {near[0]}?" if near else f"codes: {', '.join(known)}"
    return f"No code {asked} is known here; {instead}"


def _matches(kept: service_pb2.KeptSnapshot, wanted: Wanted) -> bool:
    if not kept.manifest.hosts:
        return False
    meta = kept.manifest.hosts[0].meta
    try:
        taken = datetime.fromisoformat(meta.started_at.replace("Z", "+00:00")).astimezone()
    except (ValueError, OverflowError):
        taken = None
    return (
        (wanted.since is None or (taken is not None and taken >= wanted.since))
        and (wanted.until is None or (taken is not None and taken < wanted.until))
        and (wanted.trigger is None or wanted.trigger in meta.trigger)
        and (wanted.schedule is None or wanted.schedule == meta.schedule)
        and (wanted.verdict is None or wanted.verdict.upper() == enum_name(kept.manifest.verdict, "code"))
        and (wanted.note is None or wanted.note in meta.note)
    )


def page(answer: service_pb2.ListSnapshotsResponse, wanted: Wanted = Wanted()) -> tuple[Section, ...]:
    """Build a row per snapshot; `wanted` is what they were chosen by."""
    if not answer.snapshots:
        said = "None of the snapshots that the agent keeps is such a one." if wanted.something() else NONE_KEPT
        return (Section(title="", blocks=(Paragraph(text=said),)),)
    columns = (
        Column(title="ID"),
        Column(title="TAKEN"),
        Column(title="WHY", flexible=True),
        Column(title="VERDICT"),
        Column(title="SIZE", right=True),
        Column(title="REMARKS", flexible=True),
    )
    return (Section(title="", blocks=(Table(columns=columns, rows=tuple(_row(each) for each in answer.snapshots)),)),)


def brief(answer: service_pb2.ListSnapshotsResponse) -> Iterator[str]:
    """Give an id per line, for loops of a shell."""
    return (f"{clean(each.snapshot_id)}\n" for each in answer.snapshots)


def _why(meta: meta_pb2.Meta) -> str:
    if not meta.HasField("triggered"):
        return meta.trigger or NOTHING
    return f"{meta.trigger}, look {meta.triggered.look} of {meta.triggered.looks}"


def _row(kept: service_pb2.KeptSnapshot) -> tuple[str, ...]:
    known = bool(kept.manifest.hosts)
    meta = kept.manifest.hosts[0].meta if known else None
    note = meta.note if meta is not None else ""
    remarks = [*(["pinned"] if kept.pinned else []), *([f"damaged: {kept.damage}"] if kept.damage else []), note]
    return (
        kept.snapshot_id,
        meta.started_at if meta is not None else NOTHING,
        _why(meta) if meta is not None else NOTHING,
        enum_name(kept.manifest.verdict, "code") if kept.manifest.HasField("verdict") else NOTHING,
        units.size(kept.bytes),
        ", ".join(remark for remark in remarks if remark),
    )
