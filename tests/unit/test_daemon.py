"""What the daemon refuses before it starts anything."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from freezeframe.agentd import daemon, supervisor


@pytest.mark.parametrize("option", ["--runtime-dir", "--state-dir"])
def test_a_current_directory_that_is_gone_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    done = CliRunner().invoke(daemon.command, ["--check-config", option, "here"])
    assert done.exit_code == 1
    assert done.output.startswith("freezeframe-agentd: using here: the current directory is gone\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f'runtime_dir = "/run/{"x" * 100}"', "is too long for a socket (107 bytes)"),
        ('[groups]\nview = "99999999999999999999"', "there is no group '99999999999999999999' for"),
        ('[groups]\nadmin = "nobody-has-this"', "there is no group 'nobody-has-this' for /run/freezeframe/admin.sock"),
        (
            '[audit]\nfile = "/nowhere/audit.log"',
            "looking at audit.file, /nowhere/audit.log: its directory is not there",
        ),
    ],
)
@pytest.mark.parametrize("option", [["--check-config"], []])
def test_what_no_child_could_do_is_refused_at_once(tmp_path: Path, text: str, said: str, option: list[str]) -> None:
    path = tmp_path / "agentd.toml"
    path.write_text(text)
    done = CliRunner().invoke(daemon.command, ["--config", str(path), *option])
    assert done.exit_code == 1
    assert said in done.output


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o775])
def test_a_directory_that_others_may_write_in_is_left_as_it_is(tmp_path: Path, mode: int) -> None:
    """Such as /tmp: whoever is given it for its sockets must not take it from everybody else."""
    everybodys = tmp_path / "tmp"
    everybodys.mkdir()
    everybodys.chmod(mode)
    done = CliRunner().invoke(daemon.command, ["--runtime-dir", str(everybodys), "--state-dir", str(tmp_path / "s")])
    assert (done.exit_code, done.output.splitlines()) == (1, [
        f"freezeframe-agentd: using {everybodys}: others may write in it, and put a socket of theirs in place of ours",
        f"freezeframe-agentd: name another directory, or, where it is the agent's own: chmod 711 {everybodys}",
    ])  # fmt: skip
    assert (stat.S_IMODE(everybodys.stat().st_mode), list(everybodys.iterdir())) == (mode, [])


@pytest.mark.parametrize("umask", [0, 0o22, 0o77])
def test_a_directory_is_made_with_its_mode_and_one_that_is_there_keeps_its_own(tmp_path: Path, umask: int) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there").chmod(0o755)
    before = os.umask(umask)
    try:
        supervisor.prepare(str(tmp_path / "new" / "run"), 0o711)
        supervisor.prepare(str(tmp_path / "there"), 0o711)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("new/run", "there")]
    assert modes == [0o711, 0o755]


@pytest.mark.parametrize(
    ("key", "names", "said"),
    [
        ("only", '"read_logs", "nonsense"', "schedules[0].only: there is no collector 'nonsense'\n"),
        ("skip", '"read_log"', "did you mean read_logs?\n"),
        # It belongs to no capture.
        ("only", '"run_hook"', "collectors: snapshot_processes, snapshot_python_stacks, "),
    ],
)
def test_a_schedule_of_no_collector_does_not_pass(tmp_path: Path, key: str, names: str, said: str) -> None:
    path = tmp_path / "agentd.toml"
    path.write_text(f'[[schedules]]\nname = "a"\nevery_s = 60.0\n{key} = [{names}]\n')
    done = CliRunner().invoke(daemon.command, ["--config", str(path), "--check-config"])
    assert (done.exit_code, said in done.output) == (1, True), done.output
