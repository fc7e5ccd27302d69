"""snap in the test's process, against an agent that answers what it was told."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

import pytest

from freezeframe.judge import file
from freezeframe.v1 import service_pb2, snapshot_pb2, verdict_pb2
from tests.support.canned_agent import Script, done_of, step
from tests.support.command import run
from tests.support.story import story, story_bytes

pytestmark = pytest.mark.usefixtures("alone")
NAME = "gpu-07-20260102T030405.678Z.ffz"
PARTIAL = 4


def calm() -> snapshot_pb2.Snapshot:
    snapshot = story()
    snapshot.verdict.code = verdict_pb2.Verdict.Code.NOT_STUCK
    del snapshot.outcomes[2:]
    return snapshot


def test_snap_prints_the_verdict_and_saves_the_file(script: Script, address: str) -> None:
    script.steps = [step("snapshot_sockets"), step("snapshot_sockets", "OK"), step("snapshot_gpus", "UNAVAILABLE", "x")]
    done = run("snap", address)
    # A collector of the story is PARTIAL.
    assert done.exit_code == PARTIAL
    assert done.stdout.startswith("ROUTER_DUAL_LEG   high confidence   router pid 4711\n")
    assert f"  freezeframe show {NAME} verdict --why\n  freezeframe show {NAME} sockets\n" in done.stdout
    assert done.stderr.splitlines() == ["snapshot_sockets  OK  41 ms", "snapshot_gpus  UNAVAILABLE  41 ms  x", NAME]
    assert Path(NAME).read_bytes() == script.data
    assert stat.S_IMODE(Path(NAME).stat().st_mode) == 0o600
    assert os.listdir() == [NAME]


def test_snap_asks_for_what_its_options_say(script: Script, address: str) -> None:
    run(
        "snap", "--window", "0.5", "--deadline", "3", "-p", "7", "--pid", "8", "--client", "4242", "--only", "a,b",
        "--only", "c", "--skip", "d", "--note", "why", address,
    )  # fmt: skip
    run("snap", "--client", "10.0.0.1", address)
    run("snap", "--window", "20", address)
    first, second, third = script.requests
    assert first == service_pb2.CaptureRequest(
        window_ms=500, deadline_ms=3000, pids=[7, 8], client_pid=4242, only=["a", "b", "c"], skip=["d"], note="why",
        schema=1,
    )  # fmt: skip
    assert second == service_pb2.CaptureRequest(deadline_ms=5000, client_address="10.0.0.1", schema=1)
    # A wide window must not eat the deadline.
    assert third == service_pb2.CaptureRequest(window_ms=20_000, deadline_ms=24_000, schema=1)


def test_a_whole_capture_exits_0(script: Script, address: str) -> None:
    script.data = file.write([calm()], "t")
    assert run("snap", address).exit_code == 0
    assert run("snap", "--fail-on-stuck", address).exit_code == 0


def test_fail_on_stuck_comes_before_partial(address: str) -> None:
    assert run("snap", "--fail-on-stuck", address).exit_code == 10


@pytest.mark.parametrize(("status", "code"), [("OK", 0), ("PARTIAL", 4), ("TIMED_OUT", 4), ("FAILED", 4),
                                              ("SKIPPED", 0), ("UNAVAILABLE", 0)])  # fmt: skip
def test_an_outcome_that_fell_short_exits_4(script: Script, address: str, status: str, code: int) -> None:
    snapshot = calm()
    snapshot.outcomes.add(collector="x", status=status)
    script.data = file.write([snapshot], "t")
    assert run("snap", address).exit_code == code


def test_the_output_can_be_named_before_or_after_the_command(address: str) -> None:
    before = run("--output", "json", "snap", address)
    after = run("snap", "--output", "json", address)
    assert json.loads(before.stdout) == json.loads(after.stdout)
    assert json.loads(before.stdout)["verdict"]["holder_pids"] == [4711]
    assert run("--output", "text", "snap", "--output", "brief", address).stdout.count("\n") == 5
    assert run("snap", "--output", "markdown", address).stdout.startswith("**ROUTER_DUAL_LEG")
    assert "### Evidence\n" in run("snap", "--output", "markdown", address).stdout


def test_quiet_says_nothing_on_stderr(script: Script, address: str) -> None:
    script.steps = [step("snapshot_sockets", "OK")]
    script.done = done_of(script.data, kept=False)
    script.done.not_kept_because = "full"
    for arguments in (("-q", "snap", address), ("snap", "--quiet", address)):
        done = run(*arguments)
        assert done.stderr == ""
        assert done.stdout.startswith("ROUTER_DUAL_LEG")


def test_colour_is_for_who_wants_it(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in run("snap", address).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;7m[router 30]\x1b[0m" in run("snap", "--color", "always", address).stdout
    assert "\x1b" not in run("--color", "never", "snap", address).stdout


def test_a_second_snap_never_overwrites_the_first(address: str) -> None:
    assert [run("snap", address).stderr.splitlines()[-1] for _ in range(3)] == [
        NAME, NAME.replace(".ffz", "-1.ffz"), NAME.replace(".ffz", "-2.ffz"),
    ]  # fmt: skip


def test_a_file_can_be_named_and_a_directory_too(address: str) -> None:
    os.mkdir("shots")
    assert run("snap", "-o", "mine.ffz", address).stderr.splitlines()[-1] == "mine.ffz"
    assert run("snap", "-o", "shots", address).stderr.splitlines()[-1] == f"shots/{NAME}"
    assert sorted(os.listdir()) == ["mine.ffz", "shots"]


@pytest.mark.needs("root")
@pytest.mark.parametrize(("uid", "owner"), [("65534", 65534), ("", 0), ("nonsense", 0)])
def test_under_sudo_the_file_belongs_to_who_ran_it(
    address: str, monkeypatch: pytest.MonkeyPatch, uid: str, owner: int
) -> None:
    monkeypatch.setenv("SUDO_UID", uid)
    monkeypatch.setenv("SUDO_GID", "65533")
    run("snap", address)
    assert (os.stat(NAME).st_uid, stat.S_IMODE(os.stat(NAME).st_mode)) == (owner, 0o600)


def test_a_file_that_cannot_be_written_costs_neither_verdict_nor_capture(script: Script, address: str) -> None:
    script.data = file.write([calm()], "t")
    script.done = done_of(script.data, "gpu-07-1")
    done = run("snap", "-o", "no/such/dir.ffz", address)
    assert done.exit_code == PARTIAL
    assert done.stdout.startswith("NOT_STUCK")
    assert "freezeframe show" not in done.stdout
    assert done.stderr.splitlines() == [
        "Error: writing no/such/dir.ffz: No such file or directory",
        "Hint: the agent kept it; fetch it with: freezeframe get gpu-07-1 -o FILE",
    ]
    script.done = done_of(script.data, "gpu-07-1", kept=False)
    assert "no copy of it is left" in run("snap", "-o", "no/such/dir.ffz", address).stderr


@pytest.mark.needs("root")
def test_a_full_disk_costs_neither_verdict_nor_capture(script: Script, address: str, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(disk)], check=True)
    try:
        (disk / "full").write_bytes(b"x" * 4096)
        done = run("snap", "-o", str(disk), address)
        assert done.exit_code == PARTIAL
        assert done.stdout.startswith("ROUTER_DUAL_LEG")
        assert done.stderr.splitlines()[0] == f"Error: writing {disk}/{NAME}: No space left on device"
        assert os.listdir(disk) == ["full"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_shared_capture_and_one_that_was_not_kept_are_said(script: Script, address: str) -> None:
    script.done = done_of(script.data, kept=False)
    script.done.shared = True
    script.done.not_kept_because = "the disk is full"
    assert run("snap", address).stderr.splitlines()[:2] == [
        "Somebody else's capture was under way: this is the same snapshot.",
        "The agent did not keep it: the disk is full",
    ]


def test_a_snapshot_that_came_damaged_shows_what_is_whole(script: Script, address: str) -> None:
    script.data = story_bytes()[:-40]
    done = run("snap", address)
    assert done.exit_code == 5
    assert done.stdout.startswith("ROUTER_DUAL_LEG")
    assert "is lost: the file is cut" in done.stderr


def test_a_snapshot_that_is_none(script: Script, address: str) -> None:
    script.data = b"garbage"
    done = run("snap", address)
    assert (done.exit_code, done.stdout) == (5, "")
    assert done.stderr.startswith("Error: opening gpu-07-1: the file does not begin as a snapshot")


def test_a_snapshot_of_a_newer_agent_is_shown_with_a_word(script: Script, address: str) -> None:
    snapshot = calm()
    snapshot.meta.schema = 99
    script.data = file.write([snapshot], "t")
    done = run("snap", address)
    assert done.exit_code == 0
    assert "was written by a newer version (schema 99; this one knows 1)" in done.stderr
