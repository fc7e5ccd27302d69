"""The minutes before the capture: a line per edge, gauge, GPU, process and resource, and when the last byte came."""

from __future__ import annotations

import math
from collections.abc import Sequence

from freezeframe.client.render import units
from freezeframe.client.render.document import Block, Column, Paragraph, Table
from freezeframe.client.render.sections.contract import Snapshot
from freezeframe.client.render.values import enum_name, optional
from freezeframe.v1 import host_pb2, process_pb2

_BARS = " .:-=+*#%@"
_WIDTH = 60
# Edges first: what people look for is when the tokens stopped.
_ORDER = (
    *("answer bytes", "answer events", "requests", "request bytes", "tokens", "gauge"),
    "path",
    *("gpu use", "gpu power", "kernel"),
    *("cpu", "running threads", "blocked threads", "pressure"),
)


def history(snapshot: Snapshot) -> tuple[Block, ...]:
    """Show a line per series, the whole time squeezed into one line of bars, and when it last was not 0."""
    series = moved(snapshot)
    if not series:
        return ()
    columns = (
        Column(title="WHAT"),
        Column(title="OF", flexible=True),
        Column(title="PEAK", right=True),
        Column(title="LAST NOT 0", right=True),
        Column(title="OLD TO NEW"),
    )
    processes = {each.pid: each for each in snapshot.processes}
    longest = max(len(each.values) for each in series)
    # Of this many samples each bar shows the largest.
    step = max(1, math.ceil(longest / _WIDTH))
    rows = tuple(
        (
            each.kind,
            of(each, processes),
            units.number(max(filter(math.isfinite, each.values))),
            optional(each, "last_nonzero_age_ms", lambda value: f"{units.age(value)} ago"),
            _bars(each.values, longest, step),
        )
        for each in series
    )
    interval_ms = snapshot.history.interval_ms
    told = f"{units.age(longest * interval_ms)} before the capture, a bar is {units.age(step * interval_ms)}"
    return (Paragraph(text=told), Table(columns=columns, rows=rows))


def moved(snapshot: Snapshot) -> list[host_pb2.Series]:
    """Give the series that were not 0 all the time, what matters first."""
    series = [each for each in snapshot.history.series if any(0 < value < math.inf for value in each.values)]
    return sorted(series, key=lambda each: _ORDER.index(each.kind) if each.kind in _ORDER else len(_ORDER))


def of(series: host_pb2.Series, processes: dict[int, process_pb2.Process]) -> str:
    """Name what it is of: "client 99 > router 101", "10.0.0.7 > router 101", "decode 103", "cpu"."""
    names = [_name(getattr(series, field), processes) for field in ("peer_pid", "pid") if series.HasField(field)]
    if series.kind not in {"answer bytes", "answer events", "request bytes", "requests"}:
        return " ".join((*names, *filter(None, [series.subject])))
    if not series.HasField("peer_pid"):
        names.insert(0, series.subject or "unknown")
    if not series.HasField("pid"):
        names.append(series.subject or "unknown")
    return " > ".join(names)


def _name(pid: int, processes: dict[int, process_pb2.Process]) -> str:
    process = processes.get(pid)
    if process is None:
        return f"pid {pid}"
    return f"{process.disaggregation or enum_name(process, 'role').lower().replace('_', '-')} {pid}"


def _bars(numbers: Sequence[float], longest: int, step: int) -> str:
    """Right-aligned bars: series that began later than the oldest one start further right."""
    padded = [math.nan] * (-longest % step + longest - len(numbers)) + list(numbers)
    groups = [padded[at : at + step] for at in range(0, len(padded), step)]
    values = [max(filter(math.isfinite, group), default=math.nan) for group in groups]
    peak = max(filter(math.isfinite, values), default=0.0)
    # Divided by the peak first: the peak itself is the highest bar, however it rounds.
    return "".join(
        " " if math.isnan(value) else _BARS[math.ceil(max(0.0, value) / (peak or 1.0) * (len(_BARS) - 1))]
        for value in values
    )
