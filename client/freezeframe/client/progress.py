"""Progress of a capture on stderr: a live table on a terminal, a line per collector elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from freezeframe.client.render import units
from freezeframe.client.render.guard import clean
from freezeframe.client.render.values import enum_name
from freezeframe.client.settings import complain
from freezeframe.v1 import service_pb2

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_STYLES = {"OK": "green", "PARTIAL": "yellow", "SKIPPED": "dim", "UNAVAILABLE": "yellow"}


class Show(Protocol):
    """Takes each step as it comes."""

    def __call__(self, step: service_pb2.Progress) -> None:
        """Show one step."""


@contextmanager
def shown(*, quiet: bool, color: bool) -> Iterator[Show]:
    """Give what shows steps; it is gone from the screen when the capture has ended."""
    if quiet:
        yield lambda step: None  # noqa: ARG005 - the protocol names it
    elif not (color and sys.stderr.isatty()):
        yield _line
    else:
        table = _LiveTable()
        try:
            yield table
        finally:
            table.stop()


def _line(step: service_pb2.Progress) -> None:
    if step.HasField("outcome"):
        status = enum_name(step.outcome, "status")
        detail = f"  {step.outcome.detail}" if step.outcome.detail and status != "OK" else ""
        text = f"{step.collector}  {status}  {units.age(step.outcome.duration_ms)}{detail}"
        complain(text)


class _LiveTable:
    """All collectors at once; begun at the first step, when the request is on its way already."""

    def __init__(self) -> None:
        self._steps: dict[str, service_pb2.Progress] = {}
        self._live: Live | None = None

    def __call__(self, step: service_pb2.Progress) -> None:
        self._steps[step.collector] = step
        if self._live is None:
            # Imported here: it costs as much time as the whole request, and few outputs are terminals.
            from rich.console import Console  # noqa: PLC0415
            from rich.live import Live  # noqa: PLC0415

            console = Console(file=sys.stderr, highlight=False, markup=False, emoji=False)
            self._live = Live(console=console, transient=True, refresh_per_second=8, get_renderable=self._table)
            self._live.start()

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _table(self) -> Table:
        from rich.spinner import Spinner  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        table = Table(box=None, show_header=False, pad_edge=False)
        for name, step in list(self._steps.items()):
            if step.HasField("outcome"):
                status = enum_name(step.outcome, "status")
                table.add_row(
                    Text(clean(name)),
                    Text(status, style=_STYLES.get(status, "red")),
                    Text(units.age(step.outcome.duration_ms), style="dim"),
                )
            else:
                count = f"{step.done} of {step.total} " if step.total else ""
                table.add_row(Text(clean(name)), Spinner("line"), Text(clean(f"{count}{step.doing}"), style="dim"))
        return table
