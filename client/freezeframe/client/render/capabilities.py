"""What an agent can and cannot see."""

from __future__ import annotations

from collections.abc import Iterator

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Bullets, Column, Paragraph, Section, Table, Tone
from freezeframe.client.render.guard import clean
from freezeframe.client.render.sections.contract import item
from freezeframe.client.render.values import enum_name
from freezeframe.v1 import service_pb2


def page(answer: service_pb2.GetCapabilitiesResponse) -> tuple[Section, ...]:
    """Build a row per capability, then the commands that mend what is lacking."""
    columns = (Column(title="WHAT"), Column(title="STATE"), Column(title="FOUND", flexible=True))
    rows = tuple((each.name, enum_name(each, "state").lower(), each.detail) for each in answer.capabilities)
    hints = tuple(item(f"{each.name}: {each.hint}") for each in answer.capabilities if each.hint)
    table: tuple[Block, ...] = (Table(columns=columns, rows=rows),) if rows else ()
    mending: Block = Bullets(items=hints) if hints else Paragraph(text="Nothing is to mend.", tone=Tone.GOOD)
    return (
        Section(title="", blocks=(Paragraph(text=_head(answer)),)),
        Section(title="What can be seen", blocks=table),
        Section(title="To mend", blocks=(mending,)),
    )


def brief(answer: service_pb2.GetCapabilitiesResponse) -> Iterator[str]:
    """Give a line per thing that is limited or absent."""
    for each in answer.capabilities:
        state = enum_name(each, "state")
        if state != "PRESENT":
            yield clean(f"{each.name} {state}: {each.detail}" + (f"; {each.hint}" if each.hint else "")) + "\n"


def _head(answer: service_pb2.GetCapabilitiesResponse) -> str:
    if not answer.agent_version:
        return f"{answer.host}: no agent, kernel {answer.kernel}"
    return (
        f"{answer.host}: agent {answer.agent_version}, up {units.age(answer.uptime_ms)}, kernel {answer.kernel}, "
        f"this socket serves {', '.join(answer.roles) or 'nothing'}"
    )
