"""What an issue for a project holds, by importance: verdict, environment, then tables and stacks, folded. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from freezeframe.client.render import markdown
from freezeframe.client.render.document import Paragraph, Section, Tone
from freezeframe.client.render.sections import SECTIONS, verdict
from freezeframe.client.report.forms import Form
from freezeframe.v1 import snapshot_pb2

# GitHub takes 65,536 in an issue; whoever files it has a word to say too.
MOST_CHARACTERS = 60_000
_TOKENS = MOST_CHARACTERS // 3 - 200
# Sections of `show` after the verdict, the most important first.
_FOLDED = (
    "ranks", "logs", "kernel", "gpus", "locks", "requests", "python", "asyncio", "native", "outcomes", "processes",
    "metrics", "history", "host", "hops", "sockets",
)  # fmt: skip
_AFTER_THE_VERDICT = 10


def render(snapshots: Sequence[snapshot_pb2.Snapshot], form: Form, remark: str) -> str:
    """Lay out an issue of at most `MOST_CHARACTERS`; `remark` ends it, and says whether it was redacted."""
    # A fleet's hosts share them.
    share = _TOKENS // max(1, len(snapshots))
    pages = [markdown.render(sections(snapshot, form, remark), share) for snapshot in snapshots]
    return _bounded("\n".join(pages))


def sections(snapshot: snapshot_pb2.Snapshot, form: Form, remark: str) -> tuple[Section, ...]:
    """Build the fields of `form`, the verdict's page and the records where it wants them."""
    built: list[Section] = []
    for field in form.fields:
        blocks = field.fill(snapshot)
        if field.title == form.bug:
            head, *rest = verdict.sections(snapshot)
            built.append(replace(head, title=field.title))
            built += (replace(section, minor=True) for section in rest)
            if blocks:
                built.append(Section(title="Started as", blocks=blocks, priority=4, minor=True))
        else:
            built.append(Section(title=field.title, blocks=blocks, priority=field.priority))
        if field.title == form.records:
            built += _folded(snapshot, without_logs=form.logs_apart)
    built.append(Section(title="", blocks=(Paragraph(text=remark, tone=Tone.QUIET),)))
    return tuple(section for section in built if section.blocks)


def _folded(snapshot: snapshot_pb2.Snapshot, *, without_logs: bool) -> Iterator[Section]:
    by_name = {kind.name: kind for kind in SECTIONS}
    for place, name in enumerate(_FOLDED):
        blocks = by_name[name].build(snapshot)
        if blocks and not (name == "logs" and without_logs):
            yield Section(title=by_name[name].title, blocks=blocks, priority=_AFTER_THE_VERDICT + place, folded=True)


def _bounded(text: str) -> str:
    """Cut what no priority could; a file can come from anybody."""
    if len(text) <= MOST_CHARACTERS:
        return text
    said = "\n\nCut here: what must be said is longer than an issue may be.\n"
    return text[: MOST_CHARACTERS - len(said)] + said
