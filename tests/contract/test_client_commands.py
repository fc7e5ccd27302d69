"""Commands in the test's process, against an agent that answers what it was told."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result

from freezeframe.client import cli as command_line
from freezeframe.client import hosts
from freezeframe.client.cli import COMMANDS, cli
from freezeframe.client.render import budget
from freezeframe.judge import file
from freezeframe.v1 import meta_pb2, service_pb2, snapshot_pb2, verdict_pb2
from tests.support.canned_agent import Script, canned_agent, done_of, step
from tests.support.command import SEPARATE
from tests.support.golden import assert_golden
from tests.support.story import story, story_bytes
from tests.support.two_moments import moment

NAME = "gpu-07-20260102T030405.678Z.ffz"
PARTIAL = 4


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No daemon, configuration or name of this machine has a say."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hosts, "SYSTEM_DIRECTORY", str(tmp_path / "nowhere"))
    monkeypatch.setattr("freezeframe.client.config.SYSTEM_FILE", str(tmp_path / "nowhere.toml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("FREEZEFRAME_HOST", "XDG_RUNTIME_DIR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def script() -> Script:
    return Script(data=story_bytes())


@pytest.fixture
def address(script: Script) -> Iterator[str]:
    with canned_agent(script) as path:
        yield f"unix:{path}"


def run(*arguments: str) -> Result:
    return CliRunner(**SEPARATE).invoke(cli, arguments, catch_exceptions=False)


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


def test_a_refusal_is_a_sentence_a_hint_and_exit_3(script: Script, address: str) -> None:
    info = service_pb2.ErrorInfo(reason="ROLE_REQUIRED", detail="view\x1b[31m only", hint="use capture.sock")
    script.refusal = (grpc.StatusCode.PERMISSION_DENIED, "", info)
    done = run("snap", address)
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr == f"Error: capturing {address}: view\\x1b[31m only\nHint: use capture.sock\n"


def test_an_unknown_collector_is_a_usage_error(script: Script, address: str) -> None:
    info = service_pb2.ErrorInfo(reason="UNKNOWN_COLLECTOR", detail="no collector is called x")
    script.refusal = (grpc.StatusCode.INVALID_ARGUMENT, "", info)
    assert run("snap", "--only", "x", address).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("snap", "gpu-07"), "Hint: over ssh: ssh://gpu-07; a socket: unix:PATH; or a host of the configuration"),
        (("snap", "ftp://gpu-07"), "ftp://gpu-07 is no host that this version can reach (known: none yet)"),
        (("snap", "tls://gpu-07:0"), "tls://gpu-07:0 is no host for TLS"),
        (("snap", "tls://a@gpu-07"), "tls://a@gpu-07 is no host for TLS"),
        (("snap", "kube://ns"), "kube://ns is no pod"),
        (("snap", "kube://-n/pod"), "kube://-n/pod is no pod"),
        (("snap", "kube://ns/pod:99999"), "kube://ns/pod:99999 is no pod"),
        (("snap", "gpu-[01-32]"), "gpu-[01-32] is no host that this version can reach"),
        (("snap", "a", "b"), "this version captures one host at a time"),
        (("snap", "--embedded", "a"), "leave HOST out"),
        (("snap", "--window", "nan"), "is not a number of seconds"),
        (("snap", "--window", "-1"), "is not in the range"),
        (("snap", "--deadline", "0"), "is not in the range"),
        (("snap", "--output", "json", "--budget", "100"), "--budget cuts text and Markdown"),
        (("show", "x.ffz", "nosuch"), "is not one of"),
        (("--output", "xml", "list"), "is not one of"),
        (("nosuch",), "No such command"),
        (("snap", "--only", ", "), "it names no collector"),
        (("snap", "--client", ""), "it names no client"),
        (("snap", "--client", "99999999999999999999"), "is no pid"),
        (("list", "--limit", "99999999999"), "is not in the range"),
        (("list", "--since", "yesterday"), "'yesterday' is no time: give seconds, or 10m, 1h, 2d."),
        (("schedule", "add", "a"), "give exactly one of --every, --cron and --when"),
        (("schedule", "add", "a", "--every", "60", "--when", "xid"), "give exactly one of --every, --cron and --when"),
        (("schedule", "add", "a", "--every", "soon"), "'soon' is no time: give seconds, or 10m, 1h, 2d."),
        (("snap", "--note", "\udcff"), "'\\udcff' is not UTF-8"),
        (("snap", "--client", "\udcff"), "'\\udcff' is not UTF-8"),
        (("snap", "--skip", "\udcff"), "'\\udcff' is not UTF-8"),
        (("get", "\udcff"), "'\\udcff' is not UTF-8"),
        (("rm", "\udcff"), "'\\udcff' is not UTF-8"),
        (("pin", "\udcff"), "'\\udcff' is not UTF-8"),
        (("snap", "-o", "-"), "is no file name"),
        (("snap", "-o", "/dev/null"), "'/dev/null' is there and is no regular file"),
        (("get", "latest", "-o", "/dev/stdout"), "'/dev/stdout' is there and is no regular file"),
    ],
)
def test_usage_errors_exit_2(arguments: tuple[str, ...], said: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_the_agent_is_found_by_name_environment_and_place(
    script: Script, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config" / "freezeframe" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[hosts.box]\naddress = "{address}"\n[defaults]\nwindow = 0\ndeadline = 2\noutput = "brief"\n')
    assert run("snap", "box").stdout.count("\n") == 5
    assert script.requests[-1].window_ms == 0
    assert script.requests[-1].HasField("window_ms")
    assert script.requests[-1].deadline_ms == 2000
    monkeypatch.setenv("FREEZEFRAME_HOST", "box")
    assert run("snap").exit_code == PARTIAL
    monkeypatch.delenv("FREEZEFRAME_HOST")
    runtime = Path(address.removeprefix("unix:")).parent
    monkeypatch.setattr(hosts, "SYSTEM_DIRECTORY", str(runtime))
    assert run("snap").exit_code == PARTIAL
    assert len(script.requests) == 3


def test_each_command_takes_the_socket_of_its_role(script: Script, address: str) -> None:
    """`list` finds view.sock beside capture.sock, `rm` finds admin.sock."""
    directory = Path(address.removeprefix("unix:")).parent
    with (
        canned_agent(viewer := Script(), name="view.sock", directory=directory),
        canned_agent(admin := Script(), name="admin.sock", directory=directory),
    ):
        assert run("list", f"unix:{directory}").exit_code == 0
        assert run("rm", "x", address).exit_code == 0
        assert run("rm", "y", f"unix:{directory}/view.sock").exit_code == 0
        assert run("snap", f"unix:{directory}/view.sock").exit_code == PARTIAL
    assert viewer.requests == [service_pb2.ListSnapshotsRequest(limit=100)]
    assert [request.snapshot_id for request in admin.requests] == ["x", "y"]
    assert len(script.requests) == 1


def test_a_named_agent_that_is_not_there_never_falls_back(tmp_path: Path) -> None:
    done = run("snap", f"unix:{tmp_path}/capture.sock")
    assert done.exit_code == 3
    assert done.stderr.startswith(f"Error: connecting to unix:{tmp_path}/capture.sock: no agent listens on")
    assert run("snap", f"unix:{tmp_path}").exit_code == 3


def test_a_current_directory_that_is_gone_hides_no_agent(script: Script, address: str) -> None:
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir("../gone")
    assert run("list", "unix:here").exit_code == 3
    assert run("list", address).exit_code == 0
    done = run("snap", address)
    assert done.exit_code == PARTIAL
    assert done.stdout.startswith("ROUTER_DUAL_LEG")
    assert done.stderr.splitlines()[0] == f"Error: writing {NAME}: No such file or directory"


@pytest.mark.parametrize("arguments", [("list",), ("get", "latest"), ("rm", "x")])
def test_without_a_daemon_there_is_nothing_to_list(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.exit_code == 3
    assert "no daemon runs here" in done.stderr
    assert "Hint: start the daemon: sudo systemctl start freezeframe-agentd" in done.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[defaults]\nwindwo = 1\n", "unknown key defaults.windwo; known are color, deadline, output, window"),
        ("[hosts.x]\n", 'hosts.x needs address = "unix:PATH"'),
        ("[defaults]\nwindow = true\n", "defaults.window must be seconds between 0 and 3600"),
        ('[defaults]\ncolor = "pink"\n', "defaults.color must be one of auto, always, never"),
        ('[tls]\nkey = "client.key"\n', "tls.key must be an absolute path, or begin with ~"),
        ("[tls]\nkeys = 1\n", "unknown key tls.keys; known are ca, certificate, key"),
        ("nonsense", "reading the configuration c.toml: "),
        ("\x00", "reading the configuration c.toml: "),
    ],
)
def test_a_configuration_that_cannot_be_used_is_said(text: str, said: str) -> None:
    Path("c.toml").write_text(text)
    done = run("--config", "c.toml", "list")
    assert done.exit_code == 2
    assert said in done.stderr


def test_a_named_configuration_must_be_there() -> None:
    assert "there is no such file" in run("--config", "no.toml", "list").stderr


def kept() -> service_pb2.ListSnapshotsResponse:
    answer = service_pb2.ListSnapshotsResponse()
    manifest = file.read_manifest(story_bytes())
    answer.snapshots.add(manifest=manifest, bytes=123456, pinned=True, snapshot_id=manifest.hosts[0].meta.snapshot_id)
    answer.snapshots.add(bytes=10, damage="the manifest is cut", snapshot_id="gpu-07-0")
    return answer


def test_list(script: Script, address: str) -> None:
    assert run("list", address).stdout == "The agent keeps no snapshot.\n"
    script.kept = kept()
    assert_golden(run("list", address).stdout, "render/list.txt")
    assert run("list", "--output", "brief", address).stdout == "gpu-07-20260102T030405678Z-abcd\ngpu-07-0\n"
    assert (
        json.loads(run("list", "--output", "json", address).stdout)["snapshots"][1]["damage"] == "the manifest is cut"
    )
    assert run("list", "--output", "markdown", address).stdout.startswith("| Id | Taken |")
    assert run("list", "--limit", "3", address).exit_code == 0
    assert script.requests[-1].limit == 3


def test_list_leaves_what_is_asked_for(script: Script, address: str) -> None:
    script.kept = kept()
    triggered = script.kept.snapshots.add(manifest=script.kept.snapshots[0].manifest, snapshot_id="gpu-07-2")
    meta = triggered.manifest.hosts[0].meta
    meta.trigger, meta.schedule, meta.note, meta.started_at = (
        "trigger xid",
        "gpus",
        "on call",
        "2026-01-03T03:04:05.678Z",
    )
    meta.triggered.MergeFrom(meta_pb2.Triggered(condition="xid", look=2, looks=3))

    def ids(*arguments: str) -> list[str]:
        return run("list", "--output", "brief", address, *arguments).stdout.splitlines()

    first = script.kept.snapshots[0].snapshot_id
    assert ids("--trigger", "snap") == [first]
    assert ids("--trigger", "xid") == ids("--schedule", "gpus") == ids("--note", "call") == ["gpu-07-2"]
    assert ids("--since", "2026-01-03T00:00:00Z") == ["gpu-07-2"]
    assert ids("--until", "2026-01-03T00:00:00Z") == [first]
    assert ids("--since", "1h") == []
    assert ids("--verdict", "router_dual_leg", "--limit", "1") == [first]
    assert script.requests[-1].limit == 0
    assert "trigger xid, look 2 of 3" in " ".join(run("list", "--output", "markdown", address).stdout.split())


def test_schedules_are_added_listed_and_removed(script: Script, address: str) -> None:
    directory = Path(address.removeprefix("unix:")).parent
    with canned_agent(admin := Script(), name="admin.sock", directory=directory):
        done = run(
            *("schedule", "add", "stuck", address, "--when", "stuck-for=30s", "--keep", "9", "--cool-down", "10m"),
            *("--window", "0", "--only", "read_logs", "--note", "on call"),
        )
        assert (done.exit_code, done.stdout) == (0, "")
        assert done.stderr == "Added stuck. What it captures: freezeframe list --schedule stuck\n"
        assert run("schedule", "add", "often", address, "--every", "10m", "--jitter", "1m").exit_code == 0
        assert run("schedule", "rm", "stuck", address).stderr == "Removed stuck.\n"
    first, second, third = (request for request in admin.requests)
    assert (first.schedule.when, first.schedule.keep, first.schedule.cool_down_s) == ("stuck-for=30s", 9, 600.0)
    assert not first.schedule.HasField("clear_s")
    assert first.schedule.capture == service_pb2.CaptureRequest(window_ms=0.0, only=["read_logs"], note="on call")
    assert (second.schedule.interval_s, second.schedule.jitter_s) == (600.0, 60.0)
    assert third.name == "stuck"
    assert run("schedule", "list", address).stdout == "The agent captures nothing by itself.\n"
    script.schedules = service_pb2.ListSchedulesResponse(
        schedules=[
            service_pb2.Schedule(
                name="full", when="backlog", expression="backlog >= 1", hold_s=3.0, keep=2, last="gpu-07-2",
                last_at="2026-01-03T03:04:05.678Z",
            ),
            service_pb2.Schedule(name="nightly", cron="0 3 * * *", next_at="2026-01-04T03:00:00.000Z", configured=True),
        ]
    )  # fmt: skip
    shown = " ".join(run("schedule", "list", "--output", "markdown", address).stdout.split())
    assert "| full | backlog (backlog >= 1, for 3.0 s) |" in shown.replace("\\", "")
    assert "| nightly | cron 0 3 \\* \\* \\* | 2026-01-04T03:00:00.000Z |" in shown
    assert run("schedule", "list", "--output", "brief", address).stdout == "full\nnightly\n"
    assert json.loads(run("schedule", "list", "--output", "json", address).stdout)["schedules"][1]["configured"] is True


def test_get_saves_and_shows(script: Script, address: str) -> None:
    done = run("get", "latest", address)
    assert done.exit_code == PARTIAL
    assert done.stdout.startswith("ROUTER_DUAL_LEG")
    assert done.stderr == f"{NAME}\n"
    assert Path(NAME).read_bytes() == script.data
    assert script.requests[-1].snapshot_id == "latest"
    assert run("get", "x", address, "-o", "y.ffz").stderr == "y.ffz\n"


def test_rm_says_what_it_did(script: Script, address: str) -> None:
    done = run("rm", "gpu-07-1", address)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "Deleted gpu-07-1.\n")
    script.refusal = (
        grpc.StatusCode.FAILED_PRECONDITION, "", service_pb2.ErrorInfo(reason="SNAPSHOT_PINNED", detail="it is pinned"),
    )  # fmt: skip
    assert run("rm", "gpu-07-1", address).exit_code == 3


def test_pin_says_what_it_did(script: Script, address: str) -> None:
    done = run("pin", "gpu-07-1", address)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "Pinned gpu-07-1.\n")
    assert script.requests[-1] == service_pb2.PinSnapshotRequest(snapshot_id="gpu-07-1", pinned=True)
    done = run("pin", "--unpin", "gpu-07-1", address)
    assert (done.exit_code, done.stderr) == (0, "Unpinned gpu-07-1.\n")
    assert script.requests[-1] == service_pb2.PinSnapshotRequest(snapshot_id="gpu-07-1", pinned=False)
    script.refusal = (
        grpc.StatusCode.NOT_FOUND, "", service_pb2.ErrorInfo(reason="UNKNOWN_SNAPSHOT", detail="no such snapshot"),
    )  # fmt: skip
    assert run("pin", "gpu-07-1", address).exit_code == 3


def test_doctor(script: Script, address: str) -> None:
    script.capabilities = service_pb2.GetCapabilitiesResponse(
        agent_version="0.1.0", schema=1, host="gpu-07", kernel="6.18.0", uptime_ms=7_200_000, roles=["view"],
        capabilities=[
            service_pb2.Capability(name="py-spy", state="PRESENT", detail="0.4.1"),
            service_pb2.Capability(name="kernel stacks", state="ABSENT", detail="no CAP_SYS_ADMIN", hint="grant it"),
        ],
    )  # fmt: skip
    done = run("doctor", address)
    assert (done.exit_code, done.stderr) == (0, "")
    assert_golden(done.stdout, "render/doctor.txt")
    assert run("doctor", "--output", "brief", address).stdout == ("kernel stacks ABSENT: no CAP_SYS_ADMIN; grant it\n")
    shape: Any = json.loads(run("doctor", "--output", "json", address).stdout)
    assert shape["capabilities"][1]["state"] == "ABSENT"


def test_where_asks_an_agent_or_a_file(script: Script, address: str) -> None:
    done = run("where", "bench-7", address)
    assert done.exit_code == 0
    assert done.stdout.startswith("bench-7 is in router (pid 4711) on gpu-07")
    assert os.listdir() == []
    assert script.requests[-1].window_ms == 0
    Path("x.ffz").write_bytes(script.data)
    shape: Any = json.loads(run("where", "bench-7", "x.ffz", "--output", "json").stdout)
    assert shape["hosts"][0]["hop"] == "router (pid 4711)"
    assert [request["pid"] for request in shape["hosts"][0]["requests"]] == [4242, 4711]
    assert run("where", "bench-7", "none.ffz").exit_code == 5


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
    commands = {path.stem for path in here.glob("*.py")} - {"__init__", "common", "result"}
    assert commands == {command.name.replace("list", "snapshots") for command in COMMANDS if command.name}
