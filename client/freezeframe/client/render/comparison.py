"""What changed between two snapshots, as a page, as five lines, as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from freezeframe.client.compare.model import Comparison, Moment, ProcessChange, RequestChange, SocketChange, StackChange
from freezeframe.client.render import units
from freezeframe.client.render.brief import short
from freezeframe.client.render.document import Block, Bullets, Column, Item, Paragraph, Section, Table, Tone
from freezeframe.client.render.guard import clean, clean_json
from freezeframe.client.render.sections.contract import item
from freezeframe.client.render.values import NOTHING, enum_name, holders, pids
from freezeframe.v1 import snapshot_pb2, verdict_pb2

# Rows of a kind: enough to see what it is about; JSON has them all.
_ROWS = 20
_STACK_ROWS = 12
_FRAMES = 3


def page(comparison: Comparison) -> tuple[Section, ...]:
    """Build the page; its first line is the headline."""
    c = comparison
    parts = (
        Section(title="", blocks=(Paragraph(text=c.headline, tone=Tone.STRONG),)),
        _bullets("Know first", [item(text) for text in c.remarks], 1),
        Section(title="Verdict", blocks=_verdict(c), priority=1),
        Section(title="Requests", blocks=_requests(c), priority=2),
        Section(title="Processes", blocks=_processes(c), priority=3),
        Section(title="Stacks", blocks=_stacks(c), priority=4),
        Section(title="Gauges and counters", blocks=_metrics(c), priority=5),
        Section(title="Connections", blocks=_sockets(c), priority=6),
        _bullets("Not compared", [item(f"{u.what}: not seen {_when(u.missing_in)}: {u.why}") for u in c.unseen], 3),
        Section(title="", blocks=(Paragraph(text=_about(c), tone=Tone.QUIET),), priority=4),
    )
    return tuple(part for part in parts if part.blocks)


def together(before: snapshot_pb2.Snapshot, after: snapshot_pb2.Snapshot) -> tuple[Section, ...]:
    """Build what became of the verdict over several hosts."""
    verdicts = [f"{_over_all(each.verdict)}. {each.verdict.summary}".rstrip() for each in (before, after)]
    same = _over_all(before.verdict) == _over_all(after.verdict)
    told = (
        [item(f"unchanged: {verdicts[1]}")] if same else [item(f"before: {verdicts[0]}"), item(f"after: {verdicts[1]}")]
    )
    return (Section(title="All hosts together", blocks=(Bullets(items=tuple(told)),)),)


def _over_all(verdict: verdict_pb2.Verdict) -> str:
    holder = f", {verdict.hop} {holders(verdict)}".rstrip() if verdict.hop or verdict.holder_pids else ""
    return f"{enum_name(verdict, 'code')} ({enum_name(verdict, 'confidence').lower()}{holder})"


def brief(comparison: Comparison, *, ascii_only: bool = False) -> str:
    """Say headline, verdicts, requests, what else changed, and what was not compared: five lines."""
    c = comparison
    counts = c.request_counts
    changed = [each for each in c.processes if each.state not in {"same", "unclear"}]
    moved = sum(each.changed for each in c.stack_counts)
    stacks = moved + sum(each.same for each in c.stack_counts)
    lines = (
        c.headline,
        f"verdict: {_short_verdict(c.before)}, then {'the same' if not c.verdict_changed else _short_verdict(c.after)}",
        f"requests at all hops: {', '.join(f'{counts[state]} {_STATE[state]}' for state in counts)}",
        f"processes: {'; '.join(map(_process, changed)) or 'the same'}; stacks: {moved} of {stacks} changed",
        f"not compared: {', '.join(dict.fromkeys(u.what for u in c.unseen)) or 'nothing is missing'}; {_about(c)}",
    )
    return "".join(f"{short(clean(line), '...' if ascii_only else '…')}\n" for line in lines)


def to_json(comparisons: Iterable[Comparison], *, many: bool) -> Iterator[str]:
    """Give one object, or an array of them for `many` hosts; names and shapes are those of `compare.model`."""
    separator = "[\n" if many else ""
    for each in comparisons:
        yield separator
        yield clean_json(json.dumps(_finite(dataclasses.asdict(each)), ensure_ascii=False, indent=1))
        separator = ",\n"
    yield "\n]\n" if many else "\n"


def _finite(value: Any) -> Any:
    """As protobuf's JSON has it: numbers that JSON cannot spell are words."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


_STATE = {"same": "the same", "gone": "gone", "new": "new", "unclear": "not seen in both"}


def _when(side: str) -> str:
    return "before" if side == "before" else "after"


def _bullets(title: str, items: list[Item], priority: int) -> Section:
    return Section(title=title, blocks=(Bullets(items=tuple(items)),) if items else (), priority=priority)


def _verdict(c: Comparison) -> tuple[Block, ...]:
    if not c.verdict_changed:
        return (Paragraph(text=f"unchanged: {_short_verdict(c.after)}. {c.after.summary}".rstrip()),)
    return (
        Bullets(
            items=(
                item(f"before: {_short_verdict(c.before)}. {c.before.summary}".rstrip()),
                item(f"after: {_short_verdict(c.after)}. {c.after.summary}".rstrip()),
            )
        ),
    )


def _short_verdict(moment: Moment) -> str:
    holder = f", {moment.hop} {pids(moment.holder_pids)}".rstrip() if moment.hop or moment.holder_pids else ""
    return f"{moment.code} ({moment.confidence.lower()}{holder})"


def _requests(c: Comparison) -> tuple[Block, ...]:
    """One row per way that requests take, of clients and passed on, with what became of them."""
    if not c.requests:
        return ()
    titles = {each.pid: each.title for each in c.processes}
    groups: dict[tuple[str, str], list[RequestChange]] = {}
    for each in sorted(c.requests, key=lambda each: not each.of_client):
        groups.setdefault(_way(each, titles), []).append(each)
    columns = (
        Column(title="FROM", flexible=True),
        Column(title="TO", flexible=True),
        *(Column(title=title, right=True) for title in ("SAME", "GONE", "NEW", "NOT SEEN", "OLDEST", "BYTES MOVED")),
    )
    rows = []
    for (source, target), requests in groups.items():
        counts = [str(sum(each.state == state for each in requests)) for state in ("same", "gone", "new", "unclear")]
        ages = [age for each in requests if (age := each.age_after_ms or each.age_before_ms) is not None]
        moved = [each.bytes_moved for each in requests if each.bytes_moved is not None]
        rows.append((
            source, target, *counts, units.age(max(ages)) if ages else NOTHING,
            units.size(sum(moved)) if moved else NOTHING,
        ))  # fmt: skip
    told = [item(_request(each)) for each in c.requests if each.state != "same" and (each.request_id or each.why)]
    return (
        Table(columns=columns, rows=tuple(rows)),
        *((Bullets(items=(*told[:_ROWS], *_more(told, _ROWS))),) if told else ()),
    )


def _way(each: RequestChange, titles: dict[int, str]) -> tuple[str, str]:
    own = f"{each.hop} {each.pid}".strip() if each.pid is not None else NOTHING
    if each.peer_pid is not None:
        other = f"{titles.get(each.peer_pid, 'pid')} {each.peer_pid}"
    else:
        other = each.peer_address.rpartition(":")[0] or NOTHING
    return (other, own) if each.side == "server" else (own, other)


def _request(each: RequestChange) -> str:
    name = each.request_id or f"on descriptor {each.fd} of pid {each.pid}"
    asked = f" {each.method} {each.path}".rstrip()
    age = each.age_after_ms if each.age_after_ms is not None else each.age_before_ms
    return f"{_STATE[each.state]}: {name}{asked}, {units.age(age or 0.0)} old" + (f": {each.why}" if each.why else "")


def _processes(c: Comparison) -> tuple[Block, ...]:
    changed = [each for each in c.processes if each.state != "same"]
    same = c.process_counts["same"]
    if not changed:
        return (Paragraph(text=f"the same {units.count(same, 'process')}, none restarted"),) if same else ()
    items = [item(_process(each)) for each in changed]
    kept = (item(f"{units.count(same, 'process')} the same"),) if same else ()
    return (Bullets(items=(*items[:_ROWS], *_more(items, _ROWS), *kept)),)


def _process(each: ProcessChange) -> str:
    name = f"{each.title} (pid {each.pid})"
    if each.state == "restarted":
        return f"{name} was restarted " + (f"as pid {each.pid_after}" if each.pid_after is not None else "with its pid")
    if each.state == "gone":
        return f"{name} is gone: it ended, or is no part of the path any more"
    if each.state == "unclear":
        return f"{name} was not looked at in both"
    return f"{name} is new" if each.state == "new" else f"{name}: {', '.join(each.changes)}"


def _stacks(c: Comparison) -> tuple[Block, ...]:
    if not c.stack_counts:
        return ()
    columns = (
        Column(title="KIND"),
        Column(title="PID", right=True),
        *(Column(title=title, right=True) for title in ("SAME", "CHANGED", "GONE", "NEW", "NOT SEEN")),
    )
    rows = tuple(
        (each.kind, str(each.pid), *(str(n) for n in (each.same, each.changed, each.gone, each.new, each.unclear)))
        for each in c.stack_counts
    )
    told = [_stack(each) for each in c.stacks if each.state == "changed"]
    items = (*told[:_STACK_ROWS], *_more(told, _STACK_ROWS))
    return (Table(columns=columns, rows=rows), *((Bullets(items=items),) if items else ()))


def _stack(each: StackChange) -> Item:
    tid = f" thread {each.tid}" if each.tid else ""
    return item(
        f"{each.kind} pid {each.pid}{tid} {each.name}".rstrip(),
        "",
        f"before: {_frames(each.frames_before)}",
        f"after: {_frames(each.frames_after)}",
    )


def _frames(frames: Sequence[str]) -> str:
    more = f" < {len(frames) - _FRAMES} more" if len(frames) > _FRAMES else ""
    return (" < ".join(frames[:_FRAMES]) or "none") + more


def _metrics(c: Comparison) -> tuple[Block, ...]:
    counts = c.metric_counts
    if not sum(counts.values()):
        return ()
    said = f"{counts['changed']} changed, {counts['same']} the same"
    said += "".join(f", {counts[state]} {_STATE[state]}" for state in ("gone", "new", "unclear") if counts[state])
    if not c.metrics:
        return (Paragraph(text=said),)
    columns = (
        Column(title="NAME", flexible=True),
        Column(title="PID", right=True),
        Column(title="BEFORE", right=True),
        Column(title="AFTER", right=True),
        Column(title="CHANGE", right=True),
    )
    rows = tuple(
        (
            each.name + "".join(f" {name}={value}" for name, value in sorted(each.labels.items())), str(each.pid),
            units.number(each.before), units.number(each.after), units.number(each.change),
        )
        for each in c.metrics[:_ROWS]
    )  # fmt: skip
    rest = len(c.metrics) - len(rows)
    more = (Paragraph(text=f"and {rest} more"),) if rest else ()
    return (Paragraph(text=said), Table(columns=columns, rows=rows), *more)


def _sockets(c: Comparison) -> tuple[Block, ...]:
    counts = c.socket_counts
    if not sum(counts.values()):
        return ()
    words = {"moved": "moved bytes", "same": "moved none", "changed": "changed their state", **_STATE}
    words["same"] = "moved none"
    said = ", ".join(f"{counts[state]} {words[state]}" for state in counts if counts[state])
    moved = sorted((each for each in c.sockets if each.state == "moved"), key=lambda each: -_bytes(each))
    changed = [each for each in c.sockets if each.state not in {"moved", "unclear"} and each.changes]
    rows = [item(_socket(each)) for each in (*moved, *changed)]
    shown = (*rows[:_ROWS], *_more(rows, _ROWS))
    return (Paragraph(text=said), *((Bullets(items=shown),) if shown else ()))


def _bytes(each: SocketChange) -> float:
    return (each.bytes_in or 0.0) + (each.bytes_out or 0.0)


def _socket(each: SocketChange) -> str:
    owner = f"pid {each.pid} " if each.pid is not None else ""
    ends = f"{owner}{each.local}" + (f" to {each.remote}" if each.remote else "")
    moved = [
        f"{units.size(number)} {way}" for number, way in ((each.bytes_in, "in"), (each.bytes_out, "out")) if number
    ]
    return f"{ends}: {', '.join((*moved, *each.changes))}"


def _more(items: Sequence[object], shown: int) -> tuple[Item, ...]:
    return (item(f"and {len(items) - shown} more"),) if len(items) > shown else ()


def _about(c: Comparison) -> str:
    moments = (f"{moment.started_at} ({moment.file})" for moment in (c.before, c.after))
    return f"{c.host or 'unnamed host'}: {', then '.join(moments)}"
