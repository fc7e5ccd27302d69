"""Snapshots as no agent writes them: a file can come from anybody, and every command on files says what it can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from freezeframe.judge import file, wire
from freezeframe.v1 import snapshot_pb2
from tests.support.command import run
from tests.support.filled import filled_snapshot
from tests.support.hostile_page import hostile
from tests.support.story import story

pytestmark = [pytest.mark.usefixtures("alone"), pytest.mark.timeout(300)]

COMMANDS = (
    *(("show", "x.ffz", "all", "--output", output) for output in ("text", "json", "markdown", "brief")),
    ("show", "x.ffz", "verdict", "--why"),
    ("report", "x.ffz"),
    ("report", "x.ffz", "-o", "x.html", "--anonymise"),
    ("report", "x.ffz", "-o", "x.tgz", "--for", "sglang"),
    *(("export", "x.ffz", "--to", form, "-o", form) for form in ("speedscope", "folded", "pprof", "perfetto", "otlp")),
    ("diff", "x.ffz", "x.ffz"),
)
TABLES = ("export", "x.ffz", "--to", "parquet", "-o", "tables")
# By kind of field.
NUMBERS: dict[int, tuple[Any, ...]] = {
    FieldDescriptor.CPPTYPE_DOUBLE: (float("nan"), float("inf"), -float("inf"), 1e300, -1e300, 1e-300, 0.0),
    FieldDescriptor.CPPTYPE_UINT32: (2**32 - 1, 0),
    FieldDescriptor.CPPTYPE_ENUM: (9999,),
}


def full() -> snapshot_pb2.Snapshot:
    message: snapshot_pb2.Snapshot = wire.to_message(filled_snapshot())
    return message


def each_message(message: Message) -> Iterator[Message]:
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for inner in value if wire.is_repeated(field) else (value,):
                yield from each_message(inner)
    yield message


def with_all(snapshot: snapshot_pb2.Snapshot, values: dict[int, Any]) -> snapshot_pb2.Snapshot:
    """Put a value into every field of its kind; a repeated one keeps its length."""
    for message in list(each_message(snapshot)):
        for field in message.DESCRIPTOR.fields:
            if field.cpp_type not in values or field.name == "schema":
                continue
            if wire.is_repeated(field):
                items = getattr(message, field.name)
                items[:] = [values[field.cpp_type]] * len(items)
            else:
                setattr(message, field.name, values[field.cpp_type])
    return snapshot


def told(*snapshots: snapshot_pb2.Snapshot, without: tuple[str, ...] = ()) -> None:
    """Every command does its work, but for exports of stacks where there is none (`without`)."""
    Path("x.ffz").write_bytes(file.write(snapshots, "t"))
    for command in COMMANDS:
        expected = 5 if command[0] == "export" and command[3] in without else 0
        done = run(*command)
        assert (done.exit_code, command) == (expected, command), done.stderr
    for form in {"speedscope", "otlp"} - set(without):
        json.loads(Path(form).read_text(), parse_constant=pytest.fail)


def test_no_result_takes_the_place_of_its_snapshot(tmp_path: Path) -> None:
    data = file.write([story()], "t")
    Path("x.ffz").write_bytes(data)
    Path("latest.ffz").symlink_to("x.ffz")
    Path("here").symlink_to(tmp_path)
    for command in (
        ("report", "x.ffz", "-o", "./x.ffz"),
        ("report", "latest.ffz", "-o", "here/x.ffz"),
        ("export", "x.ffz", "--to", "folded", "-o", str(tmp_path / "x.ffz")),
    ):
        done = run(*command)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.endswith(f"{command[-1]} is the snapshot itself: name another file with -o\n")
    done = run("report", "x.ffz", "-o", "a.md", "--redact-map", "here/a.md")
    assert done.stderr.endswith("a.md: the map stays with you; name another file for the report\n")
    assert Path("x.ffz").read_bytes() == data
    assert sorted(each.name for each in tmp_path.iterdir()) == ["here", "latest.ffz", "x.ffz"]


def test_the_form_of_a_report_follows_its_name_in_either_case() -> None:
    Path("x.ffz").write_bytes(file.write([story()], "t"))
    for name, begin in {"A.HTML": b"<!doctype html>", "B.TGZ": b"\x1f\x8b", "C.MD": b"###"}.items():
        assert run("report", "x.ffz", "-o", name).exit_code == 0
        assert Path(name).read_bytes()[: len(begin)].lower() == begin


def test_in_a_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tmp_path / "x.ffz"
    saved.write_bytes(file.write([story()], "t"))
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for arguments in (("-o", "a.md"), ("-o", str(tmp_path / "a.md"), "--redact-map", "m")):
        done = run("report", str(saved), *arguments)
        assert (done.exit_code, done.stdout) == (4, "")
        assert done.stderr == (
            f"Error: writing {arguments[-1]}: No such file or directory\nHint: name another place with -o FILE\n"
        )


@pytest.mark.parametrize("place", range(7))
@pytest.mark.parametrize("made", [story, full])
def test_numbers_that_nothing_has(made: Any, place: int) -> None:
    told(with_all(made(), {kind: values[place % len(values)] for kind, values in NUMBERS.items()}))


@pytest.mark.needs("parquet")
@pytest.mark.parametrize("place", range(7))
def test_numbers_that_nothing_has_in_tables(place: int) -> None:
    snapshot = with_all(full(), {kind: values[place % len(values)] for kind, values in NUMBERS.items()})
    Path("x.ffz").write_bytes(file.write([snapshot], "t"))
    assert run(*TABLES).stderr == "tables\n"


@pytest.mark.parametrize(
    "text",
    ["", "\x1b[2J\n\r\0", "\u202e\u2066x", "a" * 100_000, ";|`*_[](<b>&]]>", "\ud7ff\ufffe\U0010ffff", "..", "/", "-o",
     "requests[0]", f"requests[{'9' * 5000}]", "requests[\u00b2]", "\u0661"],
    ids=ascii,
)  # fmt: skip
def test_texts_that_nothing_has(text: str) -> None:
    told(with_all(full(), {FieldDescriptor.CPPTYPE_STRING: text}))


@pytest.mark.parametrize(
    "moment",
    ["9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "Z", "2026-01-02"],
)
def test_moments_that_no_clock_shows(moment: str) -> None:
    snapshot = story()
    snapshot.meta.started_at = moment
    told(snapshot)


def test_snapshots_of_nothing_and_a_fleet_with_one_in_it() -> None:
    nothing = snapshot_pb2.Snapshot()
    stacks = ("speedscope", "folded", "pprof")
    told(nothing, without=stacks)
    told(nothing, nothing, without=stacks)
    told(story(), nothing, hostile())
