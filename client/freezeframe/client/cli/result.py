"""What `snap` and `get` do with a snapshot that came: save it, print it, choose the exit code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from freezeframe.client import files, fleets
from freezeframe.client.errors import SaveError
from freezeframe.client.explained import explanation, explanation_of
from freezeframe.client.render import brief, json, markdown, sections, text
from freezeframe.client.render.document import Section
from freezeframe.client.render.sections import hosts, verdict
from freezeframe.client.render.sections import why as why_sections
from freezeframe.client.render.values import enum_name
from freezeframe.client.settings import Settings, complain, emit
from freezeframe.judge.explain import Explanation
from freezeframe.v1 import snapshot_pb2

if TYPE_CHECKING:
    # `show` needs no grpc.
    from freezeframe.client.connection import Received

DONE = 0
IN_PART = 4
DAMAGED = 5
STUCK = 10

# Sections that are made of what several hosts say together.
_TOGETHER = ("verdict", "findings", "hops")
_FELL_SHORT = ("PARTIAL", "TIMED_OUT", "FAILED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A snapshot and where it comes from."""

    received: Received
    # True when the agent ends with this command: it keeps nothing.
    private: bool = False


def deliver(
    settings: Settings, result: Result, *, out: str | None, budget: int | None = None, fail_on_stuck: bool = False
) -> int:
    """Save and print `result`, and give the exit code. Raises FileError when its bytes cannot be read at all."""
    done = result.received.done
    opened = files.parse(result.received.data, done.snapshot_id or "the snapshot")
    path = _save(result, opened, out)
    shown = _display(settings, opened, path, budget)
    for sentence in (*opened.lost, *((opened.newer,) if opened.newer else ())):
        complain(sentence)
    if done.shared:
        settings.say("Somebody else's capture was under way: this is the same snapshot.")
    if done.not_kept_because and not result.private:
        settings.say(f"The agent did not keep it: {done.not_kept_because}")
    if path is not None:
        settings.say(path)
    if fail_on_stuck and any(map(verdict.is_stuck, opened.lights)):
        return STUCK
    if opened.lost:
        return DAMAGED
    return DONE if shown and path is not None and not fell_short(opened.lights) else IN_PART


def display(
    settings: Settings,
    opened: files.Opened,
    path: str | None,
    names: tuple[str, ...],
    *,
    why: bool = False,
    budget: int | None = None,
    together: snapshot_pb2.Snapshot | None = None,
) -> None:
    """Print the sections called `names` of each snapshot; without names the verdict, in JSON the whole snapshot.

    Of several hosts that were captured together, what they say together comes first; `together` is that, where it is
    known already. Each host is read when its turn comes.
    """
    explained = why and (not names or "verdict" in names)
    fleet, told = together, None
    if fleet is None and opened.is_fleet:
        fleet, judged = fleets.page_and_fleet(opened)
        told = explanation_of(judged) if explained and judged is not None else None
    if settings.output == "json":
        fields = sections.fields(names) if names else ()
        pieces = (
            json.stream(snapshot, fields, _chain(explanation(snapshot)) if explained else {})
            for snapshot in opened.each(fields if fields and not explained else None)
        )
        if fleet is not None:
            own = tuple({*fields, "meta", "verdict"}) if fields else ()
            emit(json.fleet(json.stream(fleet, own, _chain(told)), pieces), utf8=True)
        else:
            emit(next(pieces) if len(opened.hosts) == 1 else json.array(pieces), utf8=True)
        return
    style = settings.style()
    if settings.output == "brief":
        emit(
            brief.render(snapshot, path, ascii_only=style.ascii)
            for snapshot in ((fleet,) if fleet is not None else opened.each(sections.read_by(("verdict",))))
        )
        return
    # Of several hosts, what each says by itself is asked for by name.
    pages = _pages(opened, path, names or ("verdict",), why=why) if names or fleet is None else iter(())
    shared = 0
    if fleet is not None:
        own = tuple(name for name in names if name in _TOGETHER) or ("verdict",)
        head = sections.build(fleet, own, path, why=explained, explanation=told, hosts=fleets.records_of(opened))
        table = hosts.section(opened.lights, opened.manifest.hosts)
        titles = (Section(title=f"On {each.meta.host or 'an unnamed host'}", blocks=()) for each in opened.lights)
        pages = chain(((*head, table),), ((title, *page) for title, page in zip(titles, pages, strict=False)))
        shared = 1
    # A fleet's hosts share it.
    count = shared + (len(opened.hosts) if names or fleet is None else 0)
    share = budget // count if budget is not None and count else budget
    if settings.output == "markdown":
        emit((markdown.render(page, share) for page in pages), utf8=True)
    else:
        emit(text.render(page, style, share) for page in pages)


def _pages(
    opened: files.Opened, path: str | None, names: tuple[str, ...], *, why: bool
) -> Iterator[tuple[Section, ...]]:
    """Build the sections of each host, one host after the other."""
    for snapshot in opened.each(None if why else sections.read_by(names)):
        told = explanation(snapshot) if why and "verdict" in names else None
        yield sections.build(snapshot, names, path, why=why, explanation=told)


def _chain(told: Explanation | None) -> dict[str, Any]:
    return {} if told is None else {"why": why_sections.to_plain(told)}


def fell_short(snapshots: Sequence[snapshot_pb2.Snapshot]) -> bool:
    """Say whether a collector brought less than it should have."""
    return any(enum_name(outcome, "status") in _FELL_SHORT for snapshot in snapshots for outcome in snapshot.outcomes)


def _display(settings: Settings, opened: files.Opened, path: str | None, budget: int | None) -> bool:
    """Print the result; when stdout takes nothing say so, and go on: where the file is matters the more."""
    try:
        display(settings, opened, path, (), budget=budget)
    except SaveError as error:
        complain(f"Error: {error}")
        return False
    return True


def _save(result: Result, opened: files.Opened, out: str | None) -> str | None:
    """Write the file; when that cannot be, say so and where the snapshot is: the verdict is printed all the same."""
    done = result.received.done
    try:
        return files.save(result.received.data, opened.hosts[0].part.meta, out)
    except SaveError as error:
        complain(f"Error: {error}")
        if done.kept and not result.private:
            complain(f"Hint: the agent kept it; fetch it with: freezeframe get {done.snapshot_id} -o FILE")
        else:
            complain("Hint: no copy of it is left; capture again where files can be written, or with -o FILE")
        return None
