"""Processes of the path and their clients, and how those were launched that overwrote their arguments."""

from __future__ import annotations

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Bullets, Column, Paragraph, Table
from freezeframe.client.render.sections.contract import Snapshot, item
from freezeframe.client.render.values import NOTHING, optional, role
from freezeframe.v1 import process_pb2

# Of a process that overwrote its own arguments; otherwise its title has them.
_SOURCES = {"parent": "parent", "unit": "unit's file"}


def processes(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show role, state and what moved."""
    if not snapshot.processes:
        return ()
    columns = (
        Column(title="PID", right=True),
        Column(title="ROLE"),
        Column(title="STATE"),
        Column(title="AGE", right=True),
        Column(title="CPU", right=True),
        Column(title="MEMORY", right=True),
        Column(title="THREADS", right=True),
        Column(title="TITLE", flexible=True),
        Column(title="WHERE", flexible=True),
    )
    rows = tuple(
        (
            str(each.pid),
            role(each),
            _state(each),
            units.age(each.age_ms),
            optional(each, "cpu_ms_delta", lambda value: f"+{units.age(value)}"),
            units.size(each.rss_bytes),
            str(each.thread_count or len(each.threads)),
            each.title or each.comm or NOTHING,
            _where(each),
        )
        for each in snapshot.processes
    )
    table = Table(columns=columns, rows=rows)
    launched = tuple(
        item(f"pid {each.pid}, from its {_SOURCES[each.argv_source]}: {' '.join(each.argv)}")
        for each in snapshot.processes
        if each.argv and each.argv_source in _SOURCES
    )
    return (
        (table, Paragraph(text=""), Paragraph(text="Launched as:"), Bullets(items=launched)) if launched else (table,)
    )


def _where(process: process_pb2.Process) -> str:
    """Its pod as namespace/pod/container, else its container, else its unit, with its pid in there."""
    names = [process.namespace, process.pod, process.container_name] if process.pod else [process.container_name]
    place = "/".join(filter(None, names)) or process.container[:12] or process.unit
    inside = f"pid {process.container_pid} inside" if process.HasField("container_pid") else ""
    return ", ".join(filter(None, (place, inside))) or NOTHING


def _state(process: process_pb2.Process) -> str:
    flags = (
        (process.frozen, "frozen"),
        (process.memory_blocked, "memory blocked"),
        (bool(process.tracer_pid), f"traced by {process.tracer_pid}"),
        (process.exited, "ended"),
    )
    return ", ".join([process.state or NOTHING, *(what for said, what in flags if said)])
