"""The list of what an agent captures by itself."""

from __future__ import annotations

from collections.abc import Iterator

from freezeframe.client.render import units
from freezeframe.client.render.document import Column, Paragraph, Section, Table
from freezeframe.client.render.guard import clean
from freezeframe.client.render.values import NOTHING
from freezeframe.v1 import service_pb2


def page(answer: service_pb2.ListSchedulesResponse) -> tuple[Section, ...]:
    """Build a row per schedule."""
    if not answer.schedules:
        return (Section(title="", blocks=(Paragraph(text="The agent captures nothing by itself."),)),)
    columns = (
        Column(title="NAME"),
        Column(title="WHEN", flexible=True),
        Column(title="NEXT"),
        Column(title="LAST"),
        Column(title="WHAT CAME OF IT", flexible=True),
        Column(title="REMARKS", flexible=True),
    )
    return (Section(title="", blocks=(Table(columns=columns, rows=tuple(_row(each) for each in answer.schedules)),)),)


def brief(answer: service_pb2.ListSchedulesResponse) -> Iterator[str]:
    """Give a name per line, for loops of a shell."""
    return (f"{clean(each.name)}\n" for each in answer.schedules)


def _row(schedule: service_pb2.Schedule) -> tuple[str, ...]:
    if schedule.when:
        held = f", for {units.age(schedule.hold_s * 1000.0)}" if schedule.hold_s else ""
        meaning = f" ({schedule.expression}{held})" if schedule.expression != schedule.when or held else ""
        when = schedule.when + meaning
    else:
        when = f"cron {schedule.cron}" if schedule.cron else f"every {units.age(schedule.interval_s * 1000.0)}"
    remarks = [
        "in the configuration file" if schedule.configured else "",
        f"the last {schedule.keep} are kept" if schedule.keep else "",
        schedule.capture.note,
    ]
    return (
        schedule.name,
        when,
        schedule.next_at or NOTHING,
        schedule.last_at or NOTHING,
        schedule.last or NOTHING,
        ", ".join(filter(None, remarks)),
    )
