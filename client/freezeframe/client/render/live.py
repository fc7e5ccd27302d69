"""One look of the live view: a line per edge, or a table that renews itself on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from freezeframe.client.render import units
from freezeframe.client.render.guard import clean
from freezeframe.client.render.values import NOTHING, enum_name
from freezeframe.v1 import process_pb2, service_pb2, socket_pb2

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_COLUMNS = ("CLIENT", "SERVER", "IN FLIGHT", "OLDEST", "TO CLIENT", "TO SERVER", "LAST BYTE")
# Requests in flight and nothing towards the client for so long: worth a colour.
_SILENT_MS = 3000.0


def lines(look: service_pb2.WatchResponse) -> Iterator[str]:
    """A line per edge, each with the time; one that says so where there is no edge."""
    if not look.edges:
        yield f"{look.meta.started_at}  no connection of a router or an engine"
    for row in _rows(look):
        client, server, in_flight, oldest, down, up, last = row
        yield clean(
            f"{look.meta.started_at}  {client} > {server}  in flight {in_flight}  oldest {oldest}  "
            f"to client {down}  to server {up}  last byte {last}"
        )


def _rows(look: service_pb2.WatchResponse) -> Iterator[tuple[str, ...]]:
    processes = {each.pid: each for each in look.processes}
    for edge in look.edges:
        yield (
            _end(edge, "client", processes),
            _end(edge, "server", processes),
            str(edge.owed),
            units.age(edge.oldest_owed_age_ms) if edge.HasField("oldest_owed_age_ms") else NOTHING,
            units.rate(edge.bytes_down_per_s),
            units.rate(edge.bytes_up_per_s),
            f"{units.age(edge.last_down_age_ms)} ago" if edge.HasField("last_down_age_ms") else NOTHING,
        )


def _end(edge: socket_pb2.Edge, side: str, processes: dict[int, process_pb2.Process]) -> str:
    if not edge.HasField(f"{side}_pid"):  # type: ignore[arg-type]
        return str(getattr(edge, f"{side}_address")) or "unknown"
    pid = getattr(edge, f"{side}_pid")
    process = processes.get(pid, process_pb2.Process())
    return f"{process.disaggregation or enum_name(process, 'role').lower().replace('_', '-') or 'pid'} {pid}"


class Screen:
    """A terminal on which the newest look stands."""

    def __init__(self, live: Live) -> None:
        """Show on `live`, which has not been started."""
        self._live = live
        live.start()

    def show(self, look: service_pb2.WatchResponse) -> None:
        """Replace the look before."""
        self._live.update(_table(look), refresh=True)

    def stop(self) -> None:
        """Leave the last look on the screen."""
        self._live.stop()


def screen(stream: TextIO) -> Screen:
    """Take over a terminal."""
    from rich.console import Console  # noqa: PLC0415 - for terminals alone
    from rich.live import Live  # noqa: PLC0415

    return Screen(Live(console=Console(file=stream, highlight=False, markup=False, emoji=False), auto_refresh=False))


def _table(look: service_pb2.WatchResponse) -> Table:
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(
        box=None, pad_edge=False, title=clean(f"{look.meta.host}  {look.meta.started_at}"), title_justify="left"
    )
    for number, title in enumerate(_COLUMNS):
        table.add_column(title, justify="left" if number < 2 else "right")  # noqa: PLR2004 - the two ends
    for edge, row in zip(look.edges, _rows(look), strict=True):
        silent = (
            edge.owed and min(edge.oldest_owed_age_ms, edge.last_down_age_ms or edge.oldest_owed_age_ms) > _SILENT_MS
        )
        table.add_row(*(Text(clean(cell)) for cell in row), style="yellow" if silent else "")
    if not look.edges:
        table.add_row("no connection of a router or an engine")
    return table
