from __future__ import annotations

import pytest

from freezeframe.client.render.sections.ranks import ranks
from freezeframe.judge.labels import folded
from freezeframe.v1 import metric_pb2, snapshot_pb2


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ([], ""),
        (["TP0"], "TP0"),
        ([f"TP{n}" for n in range(8)], "TP0-7"),
        (["TP0", "TP1", "TP3", "TP5", "TP6"], "TP0-1, TP3, TP5-6"),
        (["DP0 TP0", "DP0 TP1", "DP1 TP2"], "DP0 TP0-1, DP1 TP2"),
        (["412", "413", "414"], "412-414"),
        (["a", "b"], "a, b"),
        ([f"TP{n}" for n in range(0, 40, 2)], "TP0, TP2, TP4, TP6, TP8, TP10, TP12, TP14 and 12 more"),
    ],
)
def test_names_become_ranges(names: list[str], said: str) -> None:
    assert folded(names) == said


def rank(number: int, phase: str, frame: str, group: int, **known: object) -> metric_pb2.Rank:
    return metric_pb2.Rank(pid=400 + number, rank=f"TP{number}", phase=phase, frame=frame, group=group, **known)


def test_one_row_for_ranks_that_stand_together() -> None:
    looks = {"same_at_second_look": True, "cpu_ms_delta": 0.0}
    odd = rank(3, "all_reduce", "all_reduce under can_terminate_prefetch", 1, minority=True, **looks)
    others = [rank(n, "broadcast", "broadcast under recv", 0, **looks) for n in range(3)]
    (table,) = ranks(snapshot_pb2.Snapshot(ranks=[odd, *others]))
    assert [column.title for column in table.columns] == [
        "RANKS", "PIDS", "PHASE", "STANDS IN", "SECOND LOOK", "CPU", "NOTE",
    ]  # fmt: skip
    assert table.rows == (
        ("TP3", "403", "all_reduce", "all_reduce under can_terminate_prefetch", "same", "0 ms", "minority"),
        ("TP0-2", "400-402", "broadcast", "broadcast under recv", "same", "0 ms", ""),
    )


def test_what_the_second_look_adds_and_what_is_not_known() -> None:
    moved = {"same_at_second_look": False, "phase_after": "scheduling", "frame_after": "get_next_batch_to_run"}
    first = rank(0, "idle loop", "recv_requests", 0, cpu_ms_delta=990.0, **moved)
    second = rank(1, "idle loop", "on_idle", 0, cpu_ms_delta=1000.0, **moved)
    (table,) = ranks(snapshot_pb2.Snapshot(ranks=[first, second, rank(2, "", "", 1), rank(3, "", "compile", 2)]))
    assert table.rows == (
        (
            "TP0-1", "400-401", "idle loop", "recv_requests | on_idle", "scheduling get_next_batch_to_run",
            "990-1,000 ms", "",
        ),
        ("TP2", "402", "not seen", "-", "-", "-", ""),
        ("TP3", "403", "unknown", "compile", "-", "-", ""),
    )  # fmt: skip


def test_nothing_to_show() -> None:
    assert ranks(snapshot_pb2.Snapshot()) == ()
