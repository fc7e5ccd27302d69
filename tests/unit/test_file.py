from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from freezeframe.judge import file, wire
from freezeframe.judge.model import Snapshot, Verdict
from freezeframe.v1 import file_pb2, snapshot_pb2
from tests.support.filled import canned_snapshot, filled_snapshot

GOLDEN = Path(__file__).parents[1] / "golden"

FULL = wire.to_message(filled_snapshot())
CANNED = wire.to_message(canned_snapshot())
DATA = file.write([filled_snapshot(), canned_snapshot()], "freezeframe 0.1.0")
# Field by field, what a reader may return: the true value or nothing.
WHOLE = file.read(DATA)


def head_of(data: bytes, manifest: file_pb2.Manifest) -> bytes:
    """The bytes of a file with another manifest, digest and length right."""
    encoded = manifest.SerializeToString()
    head = struct.pack("<8sII32s", file.MAGIC, file.FORMAT, len(encoded), hashlib.sha256(encoded).digest())
    return head + encoded + data[file.manifest_end(data) :]


def changed(data: bytes, change: Callable[[file_pb2.Manifest], None]) -> bytes:
    manifest = file.read_manifest(data)
    change(manifest)
    return head_of(data, manifest)


def assert_nothing_is_wrong(contents: file.Contents, whole: file.Contents = WHOLE) -> None:
    assert contents.manifest == whole.manifest
    missing = 0
    for mine, true in zip(contents.hosts, whole.hosts, strict=True):
        for field, value in true.ListFields():
            if getattr(mine, field.name) != value:
                missing += 1
                assert field.name not in {"meta", "outcomes", "verdict"}
                assert field.name not in {present.name for present, _ in mine.ListFields()}
        assert {field.name for field, _ in mine.ListFields()} <= {field.name for field, _ in true.ListFields()}
    assert missing == sum(" is lost: " in sentence for sentence in contents.lost)


def test_what_is_written_is_read() -> None:
    contents = file.read(DATA)
    assert contents.hosts == (FULL, CANNED)
    assert contents.lost == ()
    assert contents.manifest.writer == "freezeframe 0.1.0"
    assert [section.name for section in contents.manifest.hosts[1].sections] == ["processes", "sockets", "findings"]
    assert [section.items for section in contents.manifest.hosts[1].sections] == [2, 1, 1]


def test_messages_can_be_written_too() -> None:
    assert file.write([FULL, CANNED], "freezeframe 0.1.0") == DATA  # type: ignore[list-item]


def test_equal_input_gives_equal_bytes() -> None:
    assert file.write([filled_snapshot(), canned_snapshot()], "freezeframe 0.1.0") == DATA


def test_an_empty_snapshot_and_an_empty_fleet_can_be_written() -> None:
    assert file.read(file.write([Snapshot()], "w")).hosts == (snapshot_pb2.Snapshot(),)
    assert file.read(file.write([], "w")).hosts == ()


def test_the_verdict_of_one_host_is_that_of_the_file() -> None:
    manifest = file.read_manifest(file.write([canned_snapshot()], "w"))
    assert manifest.verdict == wire.to_message(canned_snapshot().verdict)
    assert not file.read_manifest(DATA).HasField("verdict")


def test_a_fleet_has_a_verdict_of_its_own() -> None:
    verdict = wire.to_message(Verdict(summary="all of them"))
    data = file.write([canned_snapshot(), canned_snapshot("b")], "w", verdict)  # type: ignore[arg-type]
    assert file.read_manifest(data).verdict == verdict


def test_the_manifest_is_read_from_the_head_alone() -> None:
    end = file.manifest_end(DATA[: file.HEAD_BYTES])
    assert file.read_manifest(DATA[:end]) == WHOLE.manifest
    assert file.whole_size(WHOLE.manifest, end) == len(DATA)


def test_a_cut_file_gives_what_is_whole_and_says_what_is_lost() -> None:
    data = file.write([canned_snapshot()], "w")
    contents = file.read(data[:-1])
    assert contents.lost == ("gpu-07: findings (1) is lost: the file is cut, 1 bytes of it are missing",)
    assert list(contents.hosts[0].sockets) == list(CANNED.sockets)  # type: ignore[attr-defined]
    assert contents.hosts[0].verdict.code == Verdict.Code.ROUTER_HOLDS.value


@settings(deadline=None, max_examples=300)
@given(st.integers(0, len(DATA) - 1))
def test_no_cut_gives_wrong_data(length: int) -> None:
    try:
        contents = file.read(DATA[:length])
    except (file.NotASnapshotError, file.DamagedError):
        assert length < file.manifest_end(DATA)
        return
    assert contents.lost
    assert_nothing_is_wrong(contents)


@settings(deadline=None, max_examples=1000)
@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_no_flipped_byte_gives_wrong_data(position: int, flip: int) -> None:
    data = bytearray(DATA)
    data[position] ^= flip
    try:
        contents = file.read(bytes(data))
    except file.FileFormatError:
        assert position < file.manifest_end(DATA)
        return
    assert len(contents.lost) == 1
    assert_nothing_is_wrong(contents)


def test_each_single_byte_of_a_small_file_matters() -> None:
    data = file.write([canned_snapshot()], "w")
    whole = file.read(data)
    for position in range(len(data)):
        flipped = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        try:
            contents = file.read(flipped)
        except file.FileFormatError:
            assert position < file.manifest_end(data)
            continue
        assert len(contents.lost) == 1, position
        assert_nothing_is_wrong(contents, whole)


@settings(deadline=None, max_examples=500)
@given(st.binary(max_size=300))
def test_foreign_bytes_give_only_typed_errors(data: bytes) -> None:
    for candidate in (data, file.MAGIC + data, DATA[: file.HEAD_BYTES] + data):
        with pytest.raises(file.FileFormatError) as caught:
            file.read(candidate)
        assert caught.value.detail
        assert caught.value.hint


@pytest.mark.parametrize(
    "data", [b"", b"PK\x03\x04", b"\x7fELF" + b"\0" * 100, b"{}", file.MAGIC.replace(b"\r\n", b"\n")]
)
def test_other_files_are_not_snapshots(data: bytes) -> None:
    with pytest.raises(file.NotASnapshotError):
        file.read(data)


def test_a_newer_format_is_refused_with_a_sentence() -> None:
    newer = DATA[:8] + struct.pack("<I", 2) + DATA[12:]
    with pytest.raises(file.TooNewError) as caught:
        file.read(newer)
    assert caught.value.version == 2
    assert caught.value.detail == "the file has format version 2; this freezeframe reads up to 1"
    assert "upgrade" in caught.value.hint


def test_a_newer_schema_opens_and_what_is_new_is_carried_along() -> None:
    # Field 1000 of a later Snapshot, a later field of Meta, and a section of a later name.
    newer_field = b"\xc2\x3e\x03new"
    message = snapshot_pb2.Snapshot.FromString(CANNED.SerializeToString() + newer_field)
    message.meta.MergeFromString(newer_field)
    data = file.write([message], "freezeframe 9.0")
    data = changed(data, lambda manifest: setattr(manifest.hosts[0].sections[-1], "name", "novelties"))
    contents = file.read(data)
    assert contents.lost == ()
    assert contents.hosts[0] == message
    assert file.read(file.write(contents.hosts, "again")).hosts[0] == message


def test_a_section_that_holds_another_is_lost() -> None:
    data = changed(DATA, lambda manifest: setattr(manifest.hosts[1].sections[0], "name", "sockets"))
    assert file.read(data).lost == ("gpu-07: sockets (2) is lost: it holds something else",)


def bomb(declared: int, said: int) -> bytes:
    frame = zstandard.ZstdCompressor(level=19).compress(b"\0" * said)
    manifest = file_pb2.Manifest()
    manifest.hosts.add().sections.add(
        name="processes", bytes=declared, compressed_bytes=len(frame), digest=hashlib.sha256(frame).digest(), items=1
    )
    encoded = manifest.SerializeToString()
    head = struct.pack("<8sII32s", file.MAGIC, 1, len(encoded), hashlib.sha256(encoded).digest())
    return head + encoded + frame


def test_a_frame_larger_than_it_declares_is_not_unpacked() -> None:
    assert file.read(bomb(10, 64 * 1024 * 1024)).lost == (
        "unnamed host: processes (1) is lost: its frame and the manifest differ about its size",
    )


@pytest.mark.parametrize("size", [-1.0, 0.5, float("nan"), float("inf"), file.MAX_SECTION_BYTES + 1.0])
@pytest.mark.parametrize("name", ["bytes", "compressed_bytes"])
def test_impossible_sizes_are_damage(size: float, name: str) -> None:
    data = changed(DATA, lambda manifest: setattr(manifest.hosts[0].sections[0], name, size))
    with pytest.raises(file.DamagedError, match="a size that no file of ours has"):
        file.read(data)


def test_the_sum_of_sizes_is_bounded() -> None:
    def inflate(manifest: file_pb2.Manifest) -> None:
        for section in manifest.hosts[0].sections:
            section.bytes = file.MAX_SECTION_BYTES

    with pytest.raises(file.DamagedError, match="more than any snapshot has"):
        file.read(changed(DATA, inflate))


def test_a_manifest_of_impossible_length_is_damage() -> None:
    with pytest.raises(file.DamagedError, match=re.escape("a manifest of 4,294,967,295 bytes")):
        file.read(DATA[:12] + b"\xff\xff\xff\xff" + DATA[16:])


def test_bytes_after_the_end_are_named() -> None:
    contents = file.read(DATA + b"xyz")
    assert contents.lost == ("what comes after the end belongs to no section and was left out",)
    assert contents.hosts == WHOLE.hosts


def test_the_golden_file_of_format_1_opens_for_ever() -> None:
    contents = file.read((GOLDEN / "format-1.ffz").read_bytes())
    expected = snapshot_pb2.Snapshot()
    json_format.Parse((GOLDEN / "format-1.json").read_text(), expected)
    assert contents.lost == ()
    assert contents.hosts[0] == expected
    assert contents.hosts[1].meta.host == "gpu-07"
    assert len(expected.ListFields()) == 23
