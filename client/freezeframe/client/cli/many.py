"""What `snap` does with many hosts: capture, judge, save, print, choose the exit code. `where` only looks into it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime

from freezeframe.client import agents, errors, files, fleet, fleets, hosts, spooled
from freezeframe.client.cli.result import DONE, IN_PART, STUCK, display, fell_short
from freezeframe.client.connection import Agent
from freezeframe.client.render.sections import verdict
from freezeframe.client.settings import Settings, complain
from freezeframe.judge import file
from freezeframe.judge.fleet import Fleet
from freezeframe.v1 import file_pb2, meta_pb2, service_pb2, snapshot_pb2


@dataclass(slots=True)
class _Gathered:
    """What came of all hosts."""

    # Where each lies.
    hosts: list[spooled.Host] = field(default_factory=list)
    missing: list[file_pb2.Missing] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def parts(self) -> list[file_pb2.HostPart]:
        """What the manifest says of each."""
        return [host.part for host in self.hosts]


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
    with _spool(settings) as folder:
        gathered = _capture(settings, named, request, deadline_s, folder, trust_owner=trust_owner)
        page = _page(gathered)
        path = _save(_head(gathered, page), gathered, page.meta.started_at, out)
        shown = True
        try:
            display(settings, _opened(gathered), path, (), budget=budget, together=page)
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
    return DONE if whole and not fell_short([host.light for host in gathered.hosts]) else IN_PART


@contextmanager
def look(
    settings: Settings,
    named: Sequence[str],
    request: service_pb2.CaptureRequest,
    deadline_s: float,
    *,
    trust_owner: bool,
) -> Iterator[tuple[files.Opened, Fleet | None]]:
    """Capture the hosts `named` and keep no file. Raises ClientError when none of them brought a snapshot."""
    with _spool(settings) as folder:
        gathered = _capture(settings, named, request, deadline_s, folder, trust_owner=trust_owner)
        yield _opened(gathered), _judged(gathered)


def _spool(settings: Settings) -> tempfile.TemporaryDirectory[str]:
    """A folder for what comes: in /var/tmp, which is a disk where /tmp may be memory; TMPDIR names another place."""
    place = None if settings.environ.get("TMPDIR") or not os.access("/var/tmp", os.W_OK) else "/var/tmp"  # noqa: S108
    return tempfile.TemporaryDirectory(prefix="freezeframe-", dir=place)


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
    if not gathered.hosts:
        raise errors.NoSnapshotError(f"none of {len(named)} hosts brought a snapshot")
    return gathered


def _judged(gathered: _Gathered) -> Fleet | None:
    return fleets.judged(spooled.needed_of(gathered.hosts, gathered.lost), gathered.parts, gathered.missing)


def _page(gathered: _Gathered) -> snapshot_pb2.Snapshot:
    lights = [host.light for host in gathered.hosts]
    return fleets.page_of(_judged(gathered), lights, gathered.missing, None)


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
    """Look at what came; what cannot be read, and a second snapshot of one agent, count as nothing."""
    found = _Gathered()
    seen: dict[str, str] = {}
    for answer in answers:
        if answer.error is not None:
            found.missing.append(file_pb2.Missing(host=answer.host, error=str(answer.error), hint=answer.error.hint))
            continue
        try:
            _, brought = spooled.open_head(answer.path)
        except file.FileFormatError as error:
            found.missing.append(file_pb2.Missing(host=answer.host, error=error.detail, hint=error.hint))
            continue
        for host in brought:
            name = host.part.meta.snapshot_id
            if name and name in seen:
                same = f"it is the same agent as {seen[name]}, whose snapshot is there"
                found.missing.append(file_pb2.Missing(host=answer.host, error=same))
                continue
            seen[name] = answer.host
            host.part.asked = answer.host
            _set_clock(host.part, answer.clock)
            found.hosts.append(host)
    return found


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
    for host in gathered.hosts:
        yield host.sections()


def _opened(gathered: _Gathered) -> files.Opened:
    """What came, as a file of it would be opened."""
    return files.Opened(
        name="the snapshot",
        manifest=file.Manifest(hosts=gathered.parts, missing=gathered.missing),
        hosts=gathered.hosts,
        lost=gathered.lost,
    )
