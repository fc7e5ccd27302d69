from __future__ import annotations

import os
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freezeframe.agentd.frames import (
    FRAME_BYTES,
    SLOT_BYTES,
    Done,
    End,
    Frame,
    FrameDecoder,
    FramingError,
    Missed,
    Part,
    Partial,
    Slot,
    encode,
    read_slot,
    write_slot,
)
from freezeframe.judge.model import Outcome

pids = st.integers(min_value=0, max_value=2**32 - 1)
# What `escape` leaves as it is.
texts = st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=200)
frames: st.SearchStrategy[Frame] = st.one_of(
    st.builds(Part, data=st.binary(max_size=2000)),
    st.builds(Done, pid=pids),
    st.builds(Missed, pid=pids, why=texts),
    st.builds(Partial, detail=texts, hint=texts),
)
ends = st.builds(
    End, status=st.sampled_from(Outcome.Status), detail=texts, hint=texts, duration_ms=st.floats(0, 1e9)
)  # fmt: skip


@given(st.lists(frames), ends, st.lists(st.integers(1, 50)))
def test_frames_survive_any_cutting(sent: list[Frame], end: End, cuts: list[int]) -> None:
    data = b"".join(map(encode, (*sent, end)))
    decoder = FrameDecoder()
    got: list[Frame] = []
    for cut in cuts:
        got += decoder.feed(data[:cut])
        data = data[cut:]
    got += decoder.feed(data)
    assert got == [*sent, end]


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_foreign_bytes_bring_frames_or_an_error(chunks: list[bytes]) -> None:
    decoder = FrameDecoder()
    try:
        for chunk in chunks:
            for frame in decoder.feed(chunk):
                assert isinstance(frame, Part) or all(
                    str(value).isprintable() for value in (getattr(frame, name) for name in frame.__dataclass_fields__)
                )
    except FramingError:
        return


@given(st.integers(0, 255), st.integers(0, 2**32 - 1))
def test_a_length_is_refused_before_it_is_waited_for(kind: int, length: int) -> None:
    limit = FRAME_BYTES if kind == 1 else 8202
    decoder = FrameDecoder()
    if length > limit:
        with pytest.raises(FramingError, match=f"a frame of kind {kind} with {length} bytes is over"):
            decoder.feed(struct.pack("<BI", kind, length))
    elif length > 0:
        assert decoder.feed(struct.pack("<BI", kind, length)) == []


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<BI", 9, 0),
        struct.pack("<BI", 2, 3) + b"abc",
        struct.pack("<BI", 3, 2) + b"ab",
        struct.pack("<BI", 4, 3) + b"abc",
        struct.pack("<BIBd", 5, 10, 99, 1.0) + b"\0",
        struct.pack("<BIBd", 5, 9, 1, 1.0),
    ],
    ids=["unknown kind", "short pid", "no pid", "no separator", "unknown status", "no texts"],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(FramingError):
        FrameDecoder().feed(data)


def test_nothing_follows_the_end() -> None:
    end = encode(End(status=Outcome.Status.OK, detail="", hint="", duration_ms=1.0))
    with pytest.raises(FramingError, match="after the last one"):
        FrameDecoder().feed(end + encode(Done(pid=1)))


@pytest.mark.parametrize("duration", [float("nan"), float("inf"), -1.0])
def test_a_time_that_is_none_is_none(duration: float) -> None:
    (end,) = FrameDecoder().feed(
        encode(End(status=Outcome.Status.OK, detail="a\x1b[31m", hint="", duration_ms=duration))
    )
    assert end == End(status=Outcome.Status.OK, detail="a\\x1b[31m", hint="", duration_ms=0.0)


@pytest.fixture
def slot() -> Iterator[int]:
    fd = os.memfd_create("slot")
    yield fd
    os.close(fd)


def test_the_slot_tells_the_last_step(slot: int) -> None:
    assert read_slot(slot) == Slot()
    write_slot(slot, 1, at_work=True, doing=b"reading /proc/4711/cmdline")
    assert read_slot(slot) == Slot(count=1, at_work=True, doing="reading /proc/4711/cmdline")
    write_slot(slot, 2, at_work=False)
    assert read_slot(slot) == Slot(count=2, at_work=False, doing="reading /proc/4711/cmdline")
    write_slot(slot, 3, at_work=True, doing=b"x" * 5000)
    assert read_slot(slot) == Slot(count=3, at_work=True, doing="x" * (SLOT_BYTES - 7))


@given(st.binary(max_size=SLOT_BYTES + 10))
def test_a_foreign_slot_is_text_or_nothing(data: bytes) -> None:
    fd = os.memfd_create("slot")
    try:
        os.pwrite(fd, data, 0)
        assert read_slot(fd).doing.isprintable()
    finally:
        os.close(fd)
