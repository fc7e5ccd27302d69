"""What `snap` does with many hosts: capture, judge, save, print, choose the exit code. `where` only looks into it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

from freezeframe.client import agents, errors, files, fleet, fleets, hosts
from freezeframe.client.cli.result import DONE, IN_PART, STUCK, display, fell_short
from freezeframe.client.connection import Agent
from freezeframe.client.render.sections import verdict
from freezeframe.client.settings import Settings, complain
from freezeframe.judge import file
from freezeframe.judge.model import Snapshot
from freezeframe.v1 import file_pb2, meta_pb2, service_pb2, snapshot_pb2

_PIECE_BYTES = 1024 * 1024


@dataclass(slots=True)
class _Gathered:
    """What came of all hosts."""

    parts: list[file_pb2.HostPart] = field(default_factory=list)
    # Meta, outcomes and verdict of each; what is judged of it.
    snapshots: list[snapshot_pb2.Snapshot] = field(default_factory=list)
    judged: list[Snapshot] = field(default_factory=list)
    # Where the sections of each are: a file, and where in it they begin.
    places: list[tuple[str, int]] = field(default_factory=list)
    missing: list[file_pb2.Missing] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def deliver(
    settings: Settings,
    named: Sequence[str],
    request: service_pb2.CaptureRequest,
    deadline_s: float,
    *,
    out: str | None,
    budget: int | None,
    fail_on_stuck: bool,
    trust_owner: bool,
) -> int:
    """Capture the hosts `named`, save one file, print what they say together, and give the exit code."""
    with tempfile.TemporaryDirectory(prefix="freezeframe-") as folder:
        gathered = _capture(settings, named, request, deadline_s, folder, trust_owner=trust_owner)
        page = _page(gathered)
        path = _save(_head(gathered, page), gathered, page.meta.started_at, out)
    opened = _light(gathered) if path is None or settings.output != "json" else files.load(path)
    shown = True
    try:
        display(settings, opened, path, (), budget=budget, together=page)
    except errors.SaveError as error:
        complain(f"Error: {error}")
        shown = False
    for sentence in gathered.lost:
        complain(sentence)
    if path is not None:
        settings.say(path)
    if fail_on_stuck and verdict.is_stuck(page):
        return STUCK
    whole = shown and path is not None and not gathered.missing and not gathered.lost
    return DONE if whole and not fell_short(gathered.snapshots) else IN_PART


def look(
    settings: Settings,
    named: Sequence[str],
    request: service_pb2.CaptureRequest,
    deadline_s: float,
    *,
    trust_owner: bool,
) -> files.Opened:
    """Capture the hosts `named` and keep no file. Raises ClientError when none of them brought a snapshot."""
    with tempfile.TemporaryDirectory(prefix="freezeframe-") as folder:
        gathered = _capture(settings, named, request, deadline_s, folder, trust_owner=trust_owner)
        path = os.path.join(folder, "all.ffz")
        return files.load(files.write_pieces(_pieces(_head(gathered, _page(gathered)), gathered), path))


def _capture(
    settings: Settings,
    named: Sequence[str],
    request: service_pb2.CaptureRequest,
    deadline_s: float,
    folder: str,
    *,
    trust_owner: bool,
) -> _Gathered:
    for each in named:
        # What is no host at all is said before anything is captured; one that is not there may be one of many.
        with suppress(errors.AgentNotThereError):
            hosts.resolve(each, "capture", settings.config, settings.environ)

    def reach(host: str) -> AbstractContextManager[Agent]:
        return _reach(settings, host, trust_owner=trust_owner)

    answers = fleet.capture(named, reach, request, deadline_s, folder, lambda each: settings.say(_line(each)))
    gathered = _gather(answers)
    if not gathered.snapshots:
        raise errors.NoSnapshotError(f"none of {len(named)} hosts brought a snapshot")
    return gathered


def _page(gathered: _Gathered) -> snapshot_pb2.Snapshot:
    judged = fleets.judged(gathered.judged, gathered.parts, gathered.missing)
    return fleets.page_of(judged, gathered.snapshots, gathered.missing, None)


def _head(gathered: _Gathered, page: snapshot_pb2.Snapshot) -> bytes:
    verdict = page.verdict if page.HasField("verdict") else None
    return file.fleet_head(gathered.parts, "freezeframe", verdict, gathered.missing)


@contextmanager
def _reach(settings: Settings, host: str, *, trust_owner: bool) -> Iterator[Agent]:
    place = hosts.resolve(host, "capture", settings.config, settings.environ)
    # A host that is named is never the local daemon.
    if place is None:
        raise errors.AgentNotThereError(f"connecting to {host}: there is no agent", hosts.DAEMON_HINT)
    # Many that ask at once cannot be answered.
    with agents.reach(place, settings, trust_owner=trust_owner, asks=False) as agent:
        yield agent


def _line(answer: fleet.Answer) -> str:
    if answer.error is not None:
        return f"{answer.host}  nothing came  {answer.took_s:.1f} s  {answer.error}"
    return f"{answer.host}  captured  {answer.took_s:.1f} s"


def _gather(answers: Sequence[fleet.Answer]) -> _Gathered:
    """Read what came; what cannot be read, and a second snapshot of one agent, count as nothing."""
    found = _Gathered()
    seen: dict[str, str] = {}
    for answer in answers:
        if answer.error is not None:
            found.missing.append(file_pb2.Missing(host=answer.host, error=str(answer.error), hint=answer.error.hint))
            continue
        with open(answer.path, "rb") as source:
            data = source.read()
        try:
            contents = file.read(data)
        except file.FileFormatError as error:
            found.missing.append(file_pb2.Missing(host=answer.host, error=error.detail, hint=error.hint))
            continue
        for part, snapshot in zip(contents.manifest.hosts, contents.hosts, strict=True):
            name = part.meta.snapshot_id
            if name and name in seen:
                same = f"it is the same agent as {seen[name]}, whose snapshot is there"
                found.missing.append(file_pb2.Missing(host=answer.host, error=same))
                continue
            seen[name] = answer.host
            part.asked = answer.host
            _set_clock(part, answer.clock)
            found.parts.append(part)
            found.judged.append(_judged(snapshot))
            light = snapshot_pb2.Snapshot(meta=snapshot.meta, outcomes=snapshot.outcomes)
            if snapshot.HasField("verdict"):
                light.verdict.CopyFrom(snapshot.verdict)
            found.snapshots.append(light)
            found.places.append((answer.path, file.manifest_end(data)))
            found.lost += contents.lost
    return found


def _judged(snapshot: snapshot_pb2.Snapshot) -> Snapshot:
    """What is judged; nothing of what cannot be read here, as of a newer agent."""
    try:
        return fleets.to_judge(snapshot)
    except Exception:  # noqa: BLE001 - the other hosts are judged all the same
        return Snapshot()


def _set_clock(part: file_pb2.HostPart, clock: fleet.Clock | None) -> None:
    if clock is None:
        return
    try:
        # Python 3.10 knows no "Z".
        began_ms = datetime.fromisoformat(part.meta.started_at.replace("Z", "+00:00")).timestamp() * 1000
    except ValueError:
        return
    part.ahead_ms = began_ms - (clock.earliest_ms + clock.latest_ms) / 2
    part.ahead_error_ms = (clock.latest_ms - clock.earliest_ms) / 2


def _save(head: bytes, gathered: _Gathered, started_at: str, out: str | None) -> str | None:
    try:
        path = files.place(meta_pb2.Meta(host="fleet", started_at=started_at), out)
        return files.write_pieces(_pieces(head, gathered), path)
    except errors.SaveError as error:
        complain(f"Error: {error}")
        complain("Hint: each agent that keeps snapshots has its own: freezeframe list HOST")
        return None


def _pieces(head: bytes, gathered: _Gathered) -> Iterator[bytes]:
    yield head
    for path, begin in gathered.places:
        with open(path, "rb") as source:
            source.seek(begin)
            while piece := source.read(_PIECE_BYTES):
                yield piece


def _light(gathered: _Gathered) -> files.Opened:
    """What a page needs of the hosts: meta, outcomes and verdict of each."""
    return files.Opened(
        snapshots=tuple(gathered.snapshots),
        lost=(),
        newer="",
        manifest=file.Manifest(hosts=gathered.parts, missing=gathered.missing),
    )
