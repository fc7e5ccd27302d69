from __future__ import annotations

from freezeframe.client.render.sections.metrics import metrics
from freezeframe.v1 import metric_pb2, snapshot_pb2


def test_what_is_known_against_a_number_stands_below_the_table_once() -> None:
    def one(name: str, note: str) -> metric_pb2.Metric:
        return metric_pb2.Metric(name=name, value=30, age_ms=812, pid=7, source="mmap", note=note)

    table, *notes = metrics(
        snapshot_pb2.Snapshot(metrics=[one("a", "it stays"), one("b", ""), one("c", "it grows"), one("d", "it stays")])
    )
    assert [row[2] for row in table.rows] == ["30 [1]", "30", "30 [2]", "30 [1]"]  # type: ignore[union-attr]
    assert [each.text for each in notes] == ["[1] it stays.", "[2] it grows."]  # type: ignore[union-attr]
