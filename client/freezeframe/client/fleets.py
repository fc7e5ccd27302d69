"""Snapshots of several hosts, as a file has them, judged together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from freezeframe.client.errors import FileError
from freezeframe.client.files import Opened
from freezeframe.judge import wire
from freezeframe.judge.fleet import Fleet, conclude_fleet
from freezeframe.judge.model import Hop, Meta, Outcome, Snapshot
from freezeframe.judge.needed import Needed
from freezeframe.v1 import file_pb2, snapshot_pb2, verdict_pb2

# Hosts that a page names.
_NAMED = 6
# Sections that references have led to.
_KEPT = 8


def judged(
    hosts: Iterable[Needed],
    parts: Sequence[file_pb2.HostPart],
    missing: Sequence[file_pb2.Missing],
) -> Fleet | None:
    """Judge the whole path; None where that cannot be done here: a newer agent's snapshots, or nobody's."""
    positions: list[Mapping[str, Sequence[int]]] = []

    def snapshots() -> Iterator[Snapshot]:
        for each in hosts:
            positions.append(each.positions)
            yield each.snapshot

    try:
        return conclude_fleet(
            snapshots(),
            {each.host: each.error for each in missing},
            [part.ahead_ms if part.HasField("ahead_ms") else None for part in parts],
            positions,
        )
    except FileError:
        raise
    except Exception:  # noqa: BLE001 - a file can come from anybody, and what it says of each host is shown all the same
        return None


def judge(opened: Opened) -> Fleet | None:
    """Judge the hosts of a file together; None where they were not captured together, or cannot be judged here."""
    if not opened.is_fleet:
        return None
    return judged(opened.needed(), opened.manifest.hosts, opened.manifest.missing)


def joined(fleet: Fleet, kinds: Collection[str]) -> snapshot_pb2.Snapshot:
    """Records of these `kinds` of all hosts as one snapshot; its pids are distinct (`judge.correlate.joined`)."""
    values: dict[str, Any] = {kind: getattr(fleet.snapshot, kind) for kind in kinds}
    return cast("snapshot_pb2.Snapshot", wire.to_message(Snapshot(**values)))


def records_of(opened: Opened) -> Callable[[str, str], snapshot_pb2.Snapshot | None]:
    """Lead references to the hosts of a file: name of a host, section -> its snapshot with that section alone.

    What comes one after the other mostly leads to the same few.
    """
    hosts = dict(zip(opened.names, opened.hosts, strict=True))

    @functools.lru_cache(maxsize=_KEPT)
    def find(name: str, section: str) -> snapshot_pb2.Snapshot | None:
        host = hosts.get(name)
        return None if host is None else opened.read(host, {section})

    return find


def together(opened: Opened, *, nameless: bool = False) -> snapshot_pb2.Snapshot | None:
    """What the hosts of a file say together, as `page_of` gives it; None where they were not captured together.

    `nameless`: without the names of hosts that brought nothing, and without what was said of them.
    """
    if not opened.is_fleet:
        return None
    if nameless:
        missing = [
            file_pb2.Missing(host=f"missing-{n}", error="nothing came") for n in range(len(opened.manifest.missing))
        ]
        manifest = file_pb2.Manifest(hosts=opened.manifest.hosts, missing=missing)
        opened = replace(opened, manifest=manifest)
    return page_and_fleet(opened)[0]


def page_and_fleet(opened: Opened) -> tuple[snapshot_pb2.Snapshot, Fleet | None]:
    """What hosts that were captured together say together, and how it was judged: None where it was not, here."""
    manifest = opened.manifest
    kept = manifest.verdict if manifest.HasField("verdict") else None
    fleet = judged(opened.needed(), manifest.hosts, manifest.missing)
    # Of what is not whole nothing new is said.
    told = None if opened.lost and kept is not None else fleet
    return page_of(told, opened.lights, manifest.missing, kept), told


def page_of(
    fleet: Fleet | None,
    snapshots: Sequence[snapshot_pb2.Snapshot],
    missing: Sequence[file_pb2.Missing],
    kept: verdict_pb2.Verdict | None,
) -> snapshot_pb2.Snapshot:
    """What is shown of the whole path, as a snapshot without records: verdict, findings and hops.

    `kept` is the verdict that the file has, which stands where the hosts cannot be judged here.
    """
    metas = [snapshot.meta for snapshot in snapshots]
    names = [meta.host or "unnamed host" for meta in metas] + [f"{each.host} (nothing came)" for each in missing]
    more = len(names) - _NAMED
    page = cast(
        "snapshot_pb2.Snapshot",
        wire.to_message(
            Snapshot(
                meta=Meta(
                    host=f"{len(names)} hosts: {', '.join(names[:_NAMED])}" + (f" and {more} more" if more > 0 else ""),
                    started_at=min((meta.started_at for meta in metas), default=""),
                    duration_ms=max((meta.duration_ms for meta in metas), default=0.0),
                    window_ms=min((meta.window_ms for meta in metas), default=0.0),
                    agent_version=", ".join(sorted({meta.agent_version for meta in metas if meta.agent_version})),
                    note=next((meta.note for meta in metas if meta.note), ""),
                ),
                outcomes=tuple(
                    Outcome(collector=each.host, status=Outcome.Status.FAILED, detail=each.error, hint=each.hint)
                    for each in missing
                ),
                hops=tuple(_without_pids(hop) for hop in fleet.snapshot.hops) if fleet else (),
                verdict=fleet.verdict if fleet else None,
                findings=fleet.findings if fleet else (),
            )
        ),
    )
    if fleet is None and kept is not None:
        page.verdict.CopyFrom(kept)
    return page


def manifest_of(page: snapshot_pb2.Snapshot) -> file_pb2.Manifest:
    """What a file has of several hosts together, as a page of `page_of` says it."""
    missing = [file_pb2.Missing(host=each.collector, error=each.detail, hint=each.hint) for each in page.outcomes]
    return file_pb2.Manifest(verdict=page.verdict if page.HasField("verdict") else None, missing=missing)


def _without_pids(hop: Hop) -> Hop:
    """A pid says nothing without its host."""
    return Hop(
        name=hop.name,
        in_flight=hop.in_flight,
        upstream=hop.upstream,
        holds=hop.holds,
        oldest_age_ms=hop.oldest_age_ms,
        source=hop.source,
        next=hop.next,
    )
