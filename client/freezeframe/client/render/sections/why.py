"""The chain behind a verdict: facts, rules that stand, rules that are near and what they lack."""

from __future__ import annotations

from typing import Any

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Bullets, Item, Paragraph, Section, Tone
from freezeframe.client.render.sections import records
from freezeframe.client.render.sections.contract import Snapshot, item
from freezeframe.client.render.values import enum_name, placed
from freezeframe.judge.explain import Explanation, Near
from freezeframe.judge.model import Verdict


def sections(explanation: Explanation, snapshot: Snapshot) -> tuple[Section, ...]:
    """Build the chain; a snapshot that this version judges otherwise than its agent did says so."""
    facts = tuple(item(fact.text, records.short(fact.ref)) for fact in explanation.facts)
    near = tuple(_near(each) for each in explanation.near)
    nobody: tuple[Block, ...] = (Paragraph(text="No rule lacks one thing alone."),)
    return (
        Section(title="Facts", blocks=(Bullets(items=facts),), priority=8),
        Section(title="Rules that stand", blocks=_fired(explanation, snapshot), priority=7),
        Section(title="Rules that are near", blocks=(Bullets(items=near),) if near else nobody, priority=7),
        Section(title="Rules that do not stand", blocks=(Paragraph(text=_silent(explanation)),), priority=9),
    )


def to_plain(explanation: Explanation) -> dict[str, Any]:
    """Give the chain as JSON has it."""
    return {
        "facts": [{"text": fact.text, "ref": fact.ref} for fact in explanation.facts],
        "fired": [
            {
                "code": verdict.code.name,
                "hop": verdict.hop,
                "holder_pids": list(verdict.holder_pids),
                "holder_hosts": list(verdict.holder_hosts),
                "confidence": verdict.confidence.name,
                "explains": verdict.explains,
            }
            for verdict in explanation.fired
        ],
        "near": [
            {
                "code": near.code.name,
                "hop": near.hop,
                "holder_pids": list(near.holder_pids),
                "holder_hosts": list(near.holder_hosts),
                "lacks": list(near.lacks),
            }
            for near in explanation.near
        ],
        "silent": [code.name for code in explanation.silent],
    }


def _fired(explanation: Explanation, snapshot: Snapshot) -> tuple[Block, ...]:
    principal = explanation.fired[0].code.name
    said = enum_name(snapshot.verdict, "code")
    other = f"The agent said {said}; this version judges the same records to be {principal}."
    doubt = (Paragraph(text=other, tone=Tone.DOUBT),) if said != principal else ()
    return (*doubt, Bullets(items=tuple(_rule(verdict) for verdict in explanation.fired)))


def _rule(verdict: Verdict) -> Item:
    explains = f", explains {units.count(verdict.explains, 'request')}" if verdict.explains else ""
    of = _of(verdict.hop, placed(verdict.holder_pids, verdict.holder_hosts))
    return item(f"{verdict.code.name}{of}: {verdict.confidence.name}{explains}")


def _near(near: Near) -> Item:
    return item(
        f"{near.code.name}{_of(near.hop, placed(near.holder_pids, near.holder_hosts))} lacks", "", *_either(near.lacks)
    )


def _either(lacks: tuple[str, ...]) -> tuple[str, ...]:
    return (lacks[0], *(f"or {lack}" for lack in lacks[1:]))


def _of(hop: str, holders: str) -> str:
    named = f"{hop} {holders}".strip()
    return f" ({named})" if named else ""


def _silent(explanation: Explanation) -> str:
    return ", ".join(code.name for code in explanation.silent) or "none"
