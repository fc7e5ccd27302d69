"""Commands that read files, or nothing, in the test's process."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from freezeframe.client import cli as command_line
from freezeframe.client.cli import COMMANDS, cli
from freezeframe.client.render import budget
from freezeframe.judge import file
from freezeframe.v1 import snapshot_pb2
from tests.support.command import SEPARATE, run
from tests.support.story import story_bytes
from tests.support.two_moments import moment

pytestmark = pytest.mark.usefixtures("alone")


def test_show_reads_the_oldest_format_there_is() -> None:
    golden = Path(__file__).parent.parent / "golden"
    done = run("show", str(golden / "format-1.ffz"))
    assert done.exit_code == 0
    assert done.stdout
    # It is a file of two hosts: an array.
    shown = json.loads(run("show", str(golden / "format-1.ffz"), "--output", "json").stdout)
    assert len(shown) == 2
    assert all(each["meta"]["snapshot_id"] for each in shown)


def test_show_refuses_what_it_cannot_read() -> None:
    data = story_bytes()
    newer = bytearray(data)
    newer[8] = 2
    cases = {
        "newer.ffz": (bytes(newer), "format version 2; this freezeframe reads up to 1"),
        "foreign.ffz": (b"PK\x03\x04" * 100, "does not begin as a snapshot"),
        "empty.ffz": (b"", "the file is empty"),
        "head.ffz": (data[:30], "the file is cut"),
        "none.ffz": (None, "No such file or directory"),
    }
    for name, (content, said) in cases.items():
        if content is not None:
            Path(name).write_bytes(content)
        done = run("show", name)
        assert (done.exit_code, done.stdout) == (5, "")
        assert done.stderr.startswith(f"Error: opening {name}: ")
        assert said in done.stderr


def test_show_reads_no_more_than_a_snapshot_of_a_file_without_end() -> None:
    for name, head in {"whole.ffz": story_bytes(), "foreign.ffz": b"", "head.ffz": story_bytes()[:100]}.items():
        with open(name, "wb") as target:
            target.write(head)
            target.truncate(1 << 40)
    done = run("show", "whole.ffz")
    assert done.exit_code == 5
    assert done.stdout.startswith("ROUTER_DUAL_LEG")
    assert done.stderr.startswith("what comes after the end belongs to no section and was left out\n")
    assert "does not begin as a snapshot" in run("show", "foreign.ffz").stderr
    assert "does not match its digest" in run("show", "head.ffz").stderr
    assert "does not begin as a snapshot" in run("show", "/dev/zero").stderr


def test_show_gives_what_is_whole_of_a_cut_file() -> None:
    data = story_bytes()
    for cut in range(len(data) - 1, 2200, -97):
        Path("cut.ffz").write_bytes(data[:cut])
        done = run("show", "cut.ffz")
        if done.stdout:
            assert done.stdout.startswith("ROUTER_DUAL_LEG   high confidence   router pid 4711\n")
            assert "gpu-07: log_requests (2) is lost: the file is cut" in done.stderr
        assert done.stderr.splitlines()[-1] if done.stderr else ""
        assert done.exit_code == 5


def test_show_sections_in_the_order_asked_for() -> None:
    Path("x.ffz").write_bytes(story_bytes())
    page = run("show", "x.ffz", "outcomes", "hops", "asyncio").stdout
    assert [line for line in page.splitlines() if line and not line.startswith(" ")] == [
        "Outcomes", "Hops", "Asyncio tasks",
    ]  # fmt: skip
    assert list(json.loads(run("show", "x.ffz", "sockets", "--output", "json").stdout)) == ["meta", "sockets"]
    assert "sockets[0]: family=tcp, state=ESTAB" in run("show", "x.ffz", "verdict", "--why").stdout
    everything = run("show", "x.ffz", "all").stdout
    assert everything.startswith("ROUTER_DUAL_LEG")
    assert "\n\nHistory\n" in everything


def test_show_why_tells_the_chain_in_text_and_json() -> None:
    Path("a.ffz").write_bytes(story_bytes())
    done = run("show", "a.ffz", "verdict", "--why")
    assert done.exit_code == 0
    for title in ("Facts", "Rules that stand", "Rules that are near", "Rules that do not stand"):
        assert f"\n{title}\n" in done.stdout
    shown = json.loads(run("show", "a.ffz", "verdict", "--why", "--output", "json").stdout)
    assert set(shown) == {"meta", "verdict", "why"}
    assert set(shown["why"]) == {"facts", "fired", "near", "silent"}
    assert "Facts" not in run("show", "a.ffz", "sockets", "--why").stdout


def two_files(second: snapshot_pb2.Snapshot | None = None) -> None:
    Path("a.ffz").write_bytes(file.write([moment()], "t"))
    Path("b.ffz").write_bytes(file.write([second or moment(41)], "t"))


def test_diff_in_every_form() -> None:
    two_files()
    done = run("diff", "a.ffz", "b.ffz")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "same 30 requests, 41 s older, nothing moved"
    assert run("diff", "b.ffz", "a.ffz", "--output", "brief").stdout.splitlines()[0] == done.stdout.splitlines()[0]
    assert run("diff", "a.ffz", "b.ffz", "--output", "markdown").stdout.startswith(
        "**same 30 requests, 41 s older, nothing moved**\n\n### Verdict\n"
    )
    shown = json.loads(run("--output", "json", "diff", "a.ffz", "b.ffz").stdout)
    assert (shown["nothing_moved"], shown["still"], shown["request_counts"]["same"]) == (True, 30, 60)


def test_a_budget_holds_for_snap_show_and_diff(address: str) -> None:
    two_files()
    Path("c.ffz").write_bytes(story_bytes())
    for arguments in (("snap", address, "-o", "s.ffz"), ("show", "c.ffz", "all"), ("diff", "a.ffz", "b.ffz")):
        for output in ("text", "markdown"):
            cut = run(*arguments, "--output", output, "--budget", "220").stdout
            assert 0 < budget.tokens(cut) <= 220
            assert "\nCut to fit the budget: " in cut
    for output in ("json", "brief"):
        assert run("diff", "a.ffz", "b.ffz", "--output", output, "--budget", "220").exit_code == 2


def test_diff_refuses_two_hosts_and_what_it_cannot_read() -> None:
    other = moment(41)
    other.meta.host = "gpu-08"
    two_files(other)
    done = run("diff", "a.ffz", "b.ffz")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        "Error: a.ffz is of gpu-07, b.ffz of gpu-08: nothing in them is the same thing\n"
        "Hint: give two snapshots of one host\n"
    )
    assert run("diff", "a.ffz", "missing.ffz").exit_code == 5
    assert run("diff", "a.ffz").exit_code == 2


def test_diff_of_a_cut_file_calls_nothing_gone_that_is_lost() -> None:
    two_files()
    whole = Path("b.ffz").read_bytes()
    Path("b.ffz").write_bytes(whole[: file.manifest_end(whole) + 40])
    done = run("diff", "a.ffz", "b.ffz", "--output", "json")
    assert done.exit_code == 5
    assert done.stderr.splitlines()[-1] == "Error: a file is damaged: what is compared is what is whole of it"
    shown = json.loads(done.stdout)
    assert shown["request_counts"] == {"same": 0, "gone": 0, "new": 0, "unclear": 60}
    assert shown["process_counts"]["gone"] == 0
    assert "requests" in shown["remarks"][0]


def test_diff_of_fleets_pairs_hosts_by_name() -> None:
    first, second = moment(), moment(41)
    first.meta.host, second.meta.host = "gpu-08", "gpu-09"
    Path("a.ffz").write_bytes(file.write([moment(), first], "t"))
    Path("b.ffz").write_bytes(file.write([second, moment(41)], "t"))
    done = run("diff", "a.ffz", "b.ffz")
    assert done.exit_code == 0
    assert done.stdout.startswith("same 30 requests, 41 s older, nothing moved\n")
    assert done.stderr.splitlines() == ["gpu-08 is in a.ffz alone", "gpu-09 is in b.ffz alone"]


def test_mcp_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "freezeframe.client.mcp_server", raising=False)
    for name in ("mcp", "mcp.server"):
        monkeypatch.setitem(sys.modules, name, None)
    done = run("mcp")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == (
        "Error: the MCP server needs packages that are not installed: mcp.server\n"
        "Hint: pip install 'freezeframe[mcp]'\n"
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script(shell: str) -> None:
    done = run("completion", shell)
    assert done.exit_code == 0
    assert "_FREEZEFRAME_COMPLETE" in done.stdout


def test_the_shell_completes_commands_options_and_sections() -> None:
    def complete(line: str, number: int) -> list[str]:
        environment = {"_FREEZEFRAME_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(number)}
        done = CliRunner(**SEPARATE).invoke(cli, [], prog_name="freezeframe", env=environment)
        return [each.partition(",")[2] for each in done.stdout.splitlines()]

    assert complete("freezeframe sn", 1) == ["snap"]
    assert complete("freezeframe show x.ffz so", 3) == ["sockets"]
    assert complete("freezeframe snap --only snapshot_s", 3) == ["snapshot_sockets"]
    assert complete("freezeframe --output j", 2) == ["json"]


def test_export_writes_what_viewers_read(tmp_path: Path) -> None:
    (tmp_path / "a.ffz").write_bytes(story_bytes())
    result = run("export", "a.ffz", "--to", "folded")
    assert (result.exit_code, result.stderr) == (0, "")
    assert all(line.rpartition(" ")[2].isdigit() for line in result.stdout.splitlines())
    result = run("export", "a.ffz", "--to", "speedscope", "-o", "a.json")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "a.json\n")
    assert json.loads((tmp_path / "a.json").read_text())["exporter"] == "freezeframe"
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o600
    result = run("export", "a.ffz", "--to", "pprof", "-o", "a.pb.gz")
    assert (tmp_path / "a.pb.gz").read_bytes()[:2] == b"\x1f\x8b"
    result = run("export", "a.ffz", "--to", "pprof", "--of", "profile", "-o", "none")
    assert (result.exit_code, result.stdout) == (5, "")
    assert result.stderr == ("Error: exporting a.ffz: there is no profile in it\nHint: freezeframe snap --profile 5\n")
    assert not (tmp_path / "none").exists()


def test_export_of_the_whole(tmp_path: Path) -> None:
    (tmp_path / "a.ffz").write_bytes(story_bytes())
    result = run("export", "a.ffz", "--to", "otlp")
    record = json.loads(result.stdout)["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0]
    assert (result.exit_code, result.stderr, record["severityText"]) == (0, "", "ERROR")
    result = run("export", "a.ffz", "--to", "perfetto", "-o", "a.pftrace")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "a.pftrace\n")
    assert b"POST /v1/chat/completions" in (tmp_path / "a.pftrace").read_bytes()
    result = run("export", "a.ffz", "--to", "otlp", "--of", "stacks")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (2, "Error: --of chooses stacks: otlp has everything")


@pytest.mark.needs("parquet")
def test_export_writes_tables_into_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a.ffz").write_bytes(story_bytes())
    for _ in range(2):
        result = run("export", "a.ffz", "--to", "parquet", "-o", "deep/tables")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "", "deep/tables\n")
    tables = tmp_path / "deep" / "tables"
    assert [path.name for path in tables.glob("requests/*")] == ["gpu-07-20260102T030405678Z-abcd.parquet"]
    assert len([*tables.iterdir()]) == 8
    (tmp_path / "taken").write_text("")
    result = run("export", "a.ffz", "--to", "parquet", "-o", "taken")
    assert (result.exit_code, result.stderr) == (
        4,
        "Error: making taken: File exists\nHint: name another folder with -o\n",
    )
    result = run("export", "a.ffz", "--to", "parquet")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        2,
        "Error: parquet's form is a folder of files: name it with -o",
    )


def test_without_pyarrow_export_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.ffz").write_bytes(story_bytes())
    monkeypatch.delitem(sys.modules, "freezeframe.client.export.parquet", raising=False)
    monkeypatch.delattr("freezeframe.client.export.parquet", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = run("export", "a.ffz", "--to", "parquet", "-o", "tables")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "Error: writing Parquet needs a package that is not installed: pyarrow\n"
        "Hint: pip install 'freezeframe[export]'\n"
    )


def test_the_menu_is_written_out() -> None:
    assert [command.name for command in COMMANDS] == [
        "snap", "show", "diff", "export", "report", "where", "watch", "list", "get", "pin", "rm", "schedule", "doctor",
        "mcp", "completion",
    ]  # fmt: skip
    here = Path(command_line.__file__).parent
    commands = {path.stem for path in here.glob("*.py")} - {"__init__", "common", "many", "result"}
    assert commands == {command.name.replace("list", "snapshots") for command in COMMANDS if command.name}
