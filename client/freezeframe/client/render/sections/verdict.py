"""The verdict, to be read in ten seconds: code, sentence, path, evidence, who sent what, what was not seen."""

from __future__ import annotations

import re
import shlex

from freezeframe.client.render import units
from freezeframe.client.render.document import (
    Block,
    Bullets,
    Column,
    Commands,
    Item,
    Paragraph,
    Path,
    PathHop,
    Section,
    Table,
    Tone,
)
from freezeframe.client.render.sections import records
from freezeframe.client.render.sections.contract import Snapshot, item
from freezeframe.client.render.values import NOTHING, enum_name, holders, optional, pid
from freezeframe.v1 import meta_pb2, verdict_pb2

_FILE = re.compile(r"\bFILE\b")
# Codes that accuse nobody.
CALM = ("NOT_STUCK", "IDLE")
_DOUBTFUL = ("UNDETERMINED", "UNSPECIFIED")
# Section of `show` in which a field of the snapshot is seen.
SECTION_OF_FIELD = {
    "processes": "processes",
    "sockets": "sockets",
    "edges": "hops",
    "hops": "hops",
    "requests": "requests",
    "log_requests": "requests",
    "python_threads": "python",
    "asyncio_tasks": "asyncio",
    "native_threads": "native",
    "locks": "locks",
    "metrics": "metrics",
    "endpoints": "metrics",
    "log_findings": "logs",
    "log_sources": "logs",
    "kernel_events": "kernel",
    "gpus": "gpus",
    "ranks": "ranks",
    "host": "host",
    "outcomes": "outcomes",
    "history": "history",
}


def sections(
    snapshot: Snapshot, file: str | None = None, *, why: bool = False, hosts: records.Hosts = records.no_hosts
) -> tuple[Section, ...]:
    """Build the page; `file` is named in the commands to go on with; `why` puts each record under its evidence.

    `hosts` has the snapshots that references lead to, where there are several.
    """
    verdict = snapshot.verdict
    if not snapshot.HasField("verdict"):
        nothing = Paragraph(text="This snapshot carries no verdict.", tone=Tone.DOUBT)
        head = Section(title="", blocks=(nothing, *_path(snapshot)))
        return _filled(head, _unseen(snapshot), _about(snapshot))
    return _filled(
        Section(title="", blocks=_head(verdict)),
        Section(title="", blocks=(*_path(snapshot), *oldest(snapshot))),
        _bullets("Evidence", [_evidence(each, snapshot, hosts, why=why) for each in verdict.evidence], 1),
        _bullets("Ruled out", [_ruled_out(each, snapshot, hosts, why=why) for each in verdict.ruled_out], 2),
        Section(title="Who sent what", blocks=_attribution(verdict), priority=3),
        _bullets("Stands too", [_other(each) for each in snapshot.findings[1:]], 6),
        _unseen(snapshot),
        Section(title="Next", blocks=_next(snapshot, file), priority=5),
        _about(snapshot),
    )


def _filled(*pages: Section) -> tuple[Section, ...]:
    return tuple(page for page in pages if page.blocks)


def is_stuck(snapshot: Snapshot) -> bool:
    """Say whether the verdict is that something is stuck."""
    return snapshot.HasField("verdict") and enum_name(snapshot.verdict, "code") not in (*CALM, "UNSPECIFIED")


def _head(verdict: verdict_pb2.Verdict) -> tuple[Block, ...]:
    code = enum_name(verdict, "code")
    held = f"   {holder(verdict)}" if holder(verdict) else ""
    return (
        Paragraph(text=f"{code}   {enum_name(verdict, 'confidence').lower()} confidence{held}", tone=tone(verdict)),
        Paragraph(text=verdict.summary or "The agent gave no sentence."),
    )


def tone(verdict: verdict_pb2.Verdict) -> Tone:
    """Say whether it accuses, acquits or doubts."""
    code = enum_name(verdict, "code")
    return Tone.GOOD if code in CALM else Tone.DOUBT if code in _DOUBTFUL else Tone.BAD


def holder(verdict: verdict_pb2.Verdict) -> str:
    """Name who holds the requests: "router pid 4711"; empty where it is nobody."""
    return f"{verdict.hop} {holders(verdict)}".strip()


def _path(snapshot: Snapshot) -> tuple[Block, ...]:
    hops = tuple(PathHop(name=hop.name, in_flight=hop.in_flight, holds=hop.holds) for hop in snapshot.hops)
    return (Path(hops=hops),) if hops else ()


def oldest(snapshot: Snapshot) -> tuple[Paragraph, ...]:
    """Say for how long the oldest request has waited."""
    ages = [hop.oldest_age_ms for hop in snapshot.hops if hop.HasField("oldest_age_ms")]
    return (Paragraph(text=f"oldest request: at least {units.long_age(max(ages))}"),) if ages else ()


def _bullets(title: str, items: list[Item], priority: int) -> Section:
    return Section(title=title, blocks=(Bullets(items=tuple(items)),) if items else (), priority=priority)


def _evidence(evidence: verdict_pb2.Evidence, snapshot: Snapshot, hosts: records.Hosts, *, why: bool) -> Item:
    details = records.resolve(evidence.ref, snapshot, hosts) if why and evidence.ref else ()
    return item(evidence.text, records.short(evidence.ref), *details)


def _ruled_out(ruled_out: verdict_pb2.RuledOut, snapshot: Snapshot, hosts: records.Hosts, *, why: bool) -> Item:
    if len(ruled_out.evidence) == 1 and not why:
        return item(f"{ruled_out.hop}: {ruled_out.evidence[0].text}", records.short(ruled_out.evidence[0].ref))
    details: list[str] = []
    for each in ruled_out.evidence:
        details.append(f"{each.text} ({records.short(each.ref)})" if each.ref else each.text)
        if why and each.ref:
            details += records.resolve(each.ref, snapshot, hosts)
    return item(ruled_out.hop, "", *details)


def _tokens(row: verdict_pb2.Attribution) -> str:
    if not row.HasField("tokens_per_s_error"):
        return optional(row, "tokens_per_s", lambda value: f"{value:.1f}")
    return f"{row.tokens_per_s:.0f} ±{row.tokens_per_s_error:.0f}"


def _attribution(verdict: verdict_pb2.Verdict) -> tuple[Block, ...]:
    """Build the table, short enough for 80 columns, and a sentence for each client that is not as the others."""
    if not verdict.attribution:
        return ()
    tokens = any(each.HasField("tokens_per_s") for each in verdict.attribution)
    minute = any(each.HasField("bytes_per_s_60s") for each in verdict.attribution)
    columns = (
        Column(title="CLIENT", flexible=True),
        Column(title="PID", right=True),
        Column(title="REQUESTS", right=True),
        Column(title="AT LEAST", right=True),
        Column(title="RECEIVES", right=True),
        *((Column(title="LAST 60 S", right=True),) if minute else ()),
        *((Column(title="TOK/S", right=True),) if tokens else ()),
        Column(title="FROM", flexible=True),
        Column(title="NOTE"),
    )
    rows = tuple(
        (
            f"{each.client} on {each.host}" if each.host else each.client,
            pid(each),
            str(each.requests_in_flight),
            optional(each, "oldest_age_ms", units.age),
            optional(each, "bytes_per_s", units.rate),
            *((optional(each, "bytes_per_s_60s", units.rate),) if minute else ()),
            *((_tokens(each),) if tokens else ()),
            ", ".join(each.talks_to) or NOTHING,
            "stray" if each.stray else "",
        )
        for each in verdict.attribution
    )
    moving = sum(each.bytes_per_s for each in verdict.attribution)
    odd = tuple(item(_odd(each, moving)) for each in verdict.attribution if each.stray or each.bypasses_router)
    return (Table(columns=columns, rows=rows), *((Bullets(items=odd),) if odd else ()))


def _odd(client: verdict_pb2.Attribution, moving: float) -> str:
    named = client.HasField("pid") and client.client != f"pid {client.pid}"
    name = f"pid {client.pid} ({client.client})" if named else client.client
    said = []
    if client.stray:
        share = f", with {100 * client.bytes_per_s / moving:.0f} % of the bytes that clients receive" if moving else ""
        said.append(f"is a stray: its bytes move while the others wait{share}")
    if client.bypasses_router:
        said.append("goes round the router")
    return f"{name} {', and '.join(said)}"


def _other(verdict: verdict_pb2.Verdict) -> Item:
    explains = f" ({units.count(verdict.explains, 'request')})" if verdict.explains else ""
    return item(f"{enum_name(verdict, 'code')}{explains}: {verdict.summary}")


def _unseen(snapshot: Snapshot) -> Section:
    items = []
    named = []
    for index, outcome in enumerate(snapshot.outcomes):
        status = enum_name(outcome, "status")
        if status == "OK":
            continue
        named.append(outcome.collector)
        detail = f": {outcome.detail}" if outcome.detail else ""
        hint = f"to mend it: {outcome.hint}" if outcome.hint else ""
        items.append(item(f"{outcome.collector} {status}{detail}", f"outcomes[{index}]", hint))
    # An unknown that names a collector above says the same again.
    items += [item(text) for text in snapshot.verdict.unknowns if not any(name in text for name in named)]
    return _bullets("Not seen", items, 4)


def _next(snapshot: Snapshot, file: str | None) -> tuple[Block, ...]:
    # Without a file there is nothing to show again.
    usable = [step for step in snapshot.verdict.next_steps if file or not _FILE.search(step.partition("  # ")[0])]
    steps = tuple(_step(step, file) for step in usable)
    bullets = (Bullets(items=steps, numbered=True),) if steps else ()
    return (*bullets, Commands(commands=commands(snapshot, file))) if file else bullets


def _step(step: str, file: str | None) -> Item:
    """Lay a step out, which is "COMMAND  # WHY" or a sentence; FILE in a command is the snapshot's."""
    command, mark, why = step.partition("  # ")
    if not mark:
        return item(step)
    if file is not None:
        command = _FILE.sub(lambda _: shlex.quote(file), command)
    return Item(text=why, command=command)


def commands(snapshot: Snapshot, file: str) -> tuple[str, str]:
    """Choose two commands to go on with: the records behind the verdict, and the section it leans on most."""
    votes: dict[str, int] = {}
    for evidence in snapshot.verdict.evidence:
        for ref in evidence.ref.split():
            section = SECTION_OF_FIELD.get(ref.rpartition("/")[2].partition("[")[0])
            if section is not None:
                votes[section] = votes.get(section, 0) + 1
    leaned = max(votes, key=lambda name: votes[name]) if votes else "hops"
    quoted = shlex.quote(file)
    return (f"freezeframe show {quoted} verdict --why", f"freezeframe show {quoted} {leaned}")


def _cause(meta: meta_pb2.Meta) -> str:
    """Say which schedule or trigger asked for it, and what the trigger saw; empty when a caller did."""
    if not meta.HasField("triggered"):
        return f"by schedule {meta.schedule}" if meta.schedule else ""
    fired = meta.triggered
    names = [name for name in sorted(fired.values) if re.search(rf"\b{re.escape(name)}\b", fired.expression)]
    values = ", ".join(f"{name} was {fired.values[name]}" for name in names)
    if "ended" in fired.values:
        values += f": {fired.values['ended']}"
    return (
        f"by trigger {meta.schedule} ({fired.condition}: {fired.expression}{'; ' if values else ''}{values}), "
        f"fired at {fired.fired_at}, look {fired.look} of {fired.looks}"
    )


def _about(snapshot: Snapshot) -> Section:
    return Section(title="", blocks=(Paragraph(text=about(snapshot), tone=Tone.QUIET),), priority=6)


def about(snapshot: Snapshot) -> str:
    """Say where, when, how and by whom the snapshot was taken."""
    meta = snapshot.meta
    looks = f"two looks {units.age(meta.window_ms)} apart" if meta.window_ms else "one look"
    parts = [
        meta.host or "unnamed host",
        meta.started_at,
        f"took {units.age(meta.duration_ms)}",
        looks,
        f"agent {meta.agent_version or 'unknown'}" + (", started for this capture" if meta.embedded else ""),
        _cause(meta),
        f"note: {meta.note}" if meta.note else "",
    ]
    return ", ".join(part for part in parts if part)
