from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from freezeframe.client.render.document import Paragraph, Table
from freezeframe.client.render.sections.history import history
from freezeframe.v1 import host_pb2, process_pb2, snapshot_pb2

Role = process_pb2.Process.Role


def shown(*series: host_pb2.Series) -> tuple[str, list[tuple[str, ...]]]:
    processes = (
        process_pb2.Process(pid=99, role=Role.CLIENT),
        process_pb2.Process(pid=101, role=Role.ROUTER),
        process_pb2.Process(pid=103, role=Role.ENGINE_HTTP, disaggregation="decode"),
    )
    past = host_pb2.History(series=series, interval_ms=1000.0)
    paragraph, table = history(snapshot_pb2.Snapshot(processes=processes, history=past))
    assert isinstance(paragraph, Paragraph)
    assert isinstance(table, Table)
    return paragraph.text, [tuple(row) for row in table.rows]


def series(kind: str, *values: float, **fields: Any) -> host_pb2.Series:
    return host_pb2.Series(kind=kind, values=values, **fields)


def test_edges_first_with_names_and_the_moment_of_the_last_byte() -> None:
    told, rows = shown(
        series("cpu", 5.0, 10.0, pid=103),
        series("answer bytes", 90.0, 45.0, 0.0, 0.0, pid=101, peer_pid=99, last_nonzero_age_ms=2000.0),
        series("answer bytes", 10.0, pid=103, subject="10.0.0.9", last_nonzero_age_ms=0.0),
        series("answer bytes", 10.0, peer_pid=101, subject="10.0.0.7"),
        series("pressure", 12.5, subject="cpu"),
        series("running threads", 0.0, 0.0, pid=103),
    )
    assert told == "4.0 s before the capture, a bar is 1.0 s"
    assert rows == [
        ("answer bytes", "client 99 > router 101", "90", "2.0 s ago", "@+  "),
        ("answer bytes", "10.0.0.9 > decode 103", "10", "0 ms ago", "   @"),
        ("answer bytes", "router 101 > 10.0.0.7", "10", "-", "   @"),
        ("cpu", "decode 103", "10", "-", "  +@"),
        ("pressure", "cpu", "12.5", "-", "   @"),
    ]


def test_a_long_past_is_squeezed_and_keeps_its_peaks() -> None:
    values = [0.0] * 900
    values[450] = 5.0
    told, ((_, _, _, _, bars),) = shown(series("answer bytes", *values, pid=101, peer_pid=99))
    assert told == "15 min 0 s before the capture, a bar is 15.0 s"
    assert bars == " " * 30 + "@" + " " * 29
    assert not history(snapshot_pb2.Snapshot())


def test_seconds_without_a_value_are_gaps() -> None:
    _, ((_, _, peak, _, bars),) = shown(series("cpu", 1.0, math.nan, 1.0, pid=101))
    assert (peak, bars) == ("1", "@ @")


@given(st.lists(st.floats(allow_nan=True, allow_infinity=False), min_size=1, max_size=200))
def test_whatever_the_values_the_highest_is_the_highest_bar(values: list[float]) -> None:
    past = host_pb2.History(series=[series("cpu", *values, pid=101)], interval_ms=1000.0)
    for block in history(snapshot_pb2.Snapshot(history=past)):
        if isinstance(block, Table):
            assert "@" in block.rows[0][-1]
