from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.host import load_snapshots
from freezeframe.agentd.host.prometheus_files import NAME, parse


@given(st.binary(max_size=400), st.integers(-10, 500))
def test_whatever_a_file_holds_reading_it_ends(content: bytes, used: int) -> None:
    entries, _ = parse(struct.pack("<ii", used, 0) + content, "gauge_livesum")
    assert len(entries) <= len(content) // 24


@given(st.binary(max_size=400))
def test_whatever_a_load_snapshot_holds_reading_it_ends(content: bytes) -> None:
    for data in (content, struct.pack("<4sHHI", b"SLNS", 2, 3, 100) + content):
        try:
            for payload in load_snapshots.slots(data):
                load_snapshots.decode(payload)
        except ValueError:
            continue


def test_names() -> None:
    match = NAME.search("/tmp/metrics/gauge_mostrecent_4711.db")
    assert match is not None
    assert (match["kind"], match["pid"]) == ("gauge_mostrecent", "4711")
    assert NAME.search("/tmp/notes_4711.db") is None
    assert load_snapshots.NAME.search("/dev/shm/sglang_loads_a/../x.shm") is None
