"""Snapshots as no agent writes them: a file can come from anybody, and every command on files says what it can."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from freezeframe.judge import file
from freezeframe.v1 import snapshot_pb2
from tests.support.command import run
from tests.support.hostile_page import hostile
from tests.support.odd import MOMENTS, NUMBERS, TEXTS, full, with_all
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


def told(*snapshots: snapshot_pb2.Snapshot, without: tuple[str, ...] = ()) -> None:
    """Every command does its work, but for exports of stacks where there is none (`without`)."""
    Path("x.ffz").write_bytes(file.write(snapshots, "t"))
    done_all(without)


def done_all(without: tuple[str, ...] = ()) -> None:
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


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_snapshot_that_comes_through_a_pipe(hosts: int) -> None:
    """Such as `show <(ssh gpu-07 cat x.ffz)`: it can be read once."""
    data = file.write([story()] * hosts, "t", full().verdict)
    Path("x.ffz").write_bytes(data)
    for command in (("show",), ("show", "verdict", "--why"), ("report",), ("export", "--to", "otlp", "-o", "o")):
        reader, writer = os.pipe()
        os.write(writer, data)
        os.close(writer)
        piped, filed = (run(command[0], path, *command[1:]) for path in (f"/dev/fd/{reader}", "x.ffz"))
        os.close(reader)
        assert (piped.exit_code, piped.stdout.replace(f"/dev/fd/{reader}", "x.ffz")) == (0, filed.stdout)


@pytest.mark.parametrize("ahead_ms", [float("nan"), float("inf"), -float("inf"), 1e300, -1e300, 1.0])
@pytest.mark.parametrize("moment", ["", "2026-01-02T03:04:05Z"])
def test_clocks_of_a_fleet_that_none_has(ahead_ms: float, moment: str) -> None:
    one, two = story(), story()
    one.meta.started_at = two.meta.started_at = moment
    data = file.write([one, two], "t", full().verdict)
    manifest = file.read_manifest(data)
    for part in manifest.hosts:
        part.ahead_ms = part.ahead_error_ms = ahead_ms
    head = file.fleet_head(manifest.hosts, "t", manifest.verdict)
    Path("x.ffz").write_bytes(head + data[file.manifest_end(data) :])
    done_all()


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


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: ascii(text)[:40])
def test_texts_that_nothing_has(text: str) -> None:
    told(with_all(full(), {FieldDescriptor.CPPTYPE_STRING: text}))


@pytest.mark.parametrize("moment", MOMENTS)
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
