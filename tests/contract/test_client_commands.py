"""Commands that ask an agent, in the test's process, against one that answers what it was told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import grpc
import pytest

from freezeframe.client import hosts
from freezeframe.judge import file
from freezeframe.v1 import meta_pb2, service_pb2
from tests.support.canned_agent import Script, canned_agent
from tests.support.command import run
from tests.support.golden import assert_golden
from tests.support.story import story_bytes

pytestmark = pytest.mark.usefixtures("alone")
NAME = "gpu-07-20260102T030405.678Z.ffz"
PARTIAL = 4


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
        (("snap", ""), "the name of a host is empty"),
        (("list", " "), "the name of a host is empty"),
        (("snap", "", "gpu-07"), "the name of a host is empty"),
        (("snap", "gpu-[01-"), "gpu-[01- is no set of hosts"),
        (("where", "id", "gpu-[]"), "gpu-[] is no set of hosts"),
        (("snap", "gpu-[01-32]"), "gpu-01 is no host that this version can reach"),
        (("snap", "a", "b"), "is no host that this version can reach"),
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
        (("list", "--since", "999999999d"), "'999999999d' ago was before the year 1."),
        (("list", "--until", "0001-01-01T00:00:00+23:59"), "is no time: give seconds, or 10m, 1h, 2d."),
        (("schedule", "add", "a"), "give exactly one of --every, --cron and --when"),
        (("schedule", "add", "a", "--every", "60", "--when", "xid"), "give exactly one of --every, --cron and --when"),
        (("schedule", "add", "a", "--every", "0"), "--every takes a second or more"),
        (("schedule", "add", "a", "--when", ""), "give exactly one of --every, --cron and --when"),
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
        ('[hosts.x]\naddress = "unix:/a\\u0000b"\n', "c.toml: no name, address or path has a NUL"),
        ('[groups]\ng = ["a", "b\\u0000"]\n', "c.toml: no name, address or path has a NUL"),
        ('[tls]\nkey = "/a\\u0000b"\n', "c.toml: no name, address or path has a NUL"),
        ('[groups]\ng = ["gpu-1", ""]\n', "groups.g: the name of a host is empty"),
        ('[hosts."gpu-[2-1]"]\naddress = "ssh://{host}"\n', "c.toml: hosts: gpu-[2-1] is no set of hosts"),
        ('[hosts."gpu-[1-"]\naddress = "ssh://{host}"\n', "c.toml: hosts: gpu-[1- is no set of hosts"),
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
    assert run("list", address, "--note", "nobody's").stdout == (
        "None of the snapshots that the agent keeps is such a one.\n"
    )
    meta.started_at = "0001-01-01T00:00:00+23:59"
    assert ids("--since", "2026-01-01T00:00:00Z") == [first]
    assert ids("--verdict", "router_dual_leg", "--limit", "1") == [first]
    assert script.requests[-1].limit == 0
    assert "trigger xid, look 2 of 3" in " ".join(run("list", "--output", "markdown", address).stdout.split())


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("ROUTER_HODLS", "Hint: No code ROUTER_HODLS is known here; did you mean ROUTER_HOLDS?\n"),
        ("xyz", "Hint: No code XYZ is known here; codes: NOT_STUCK, IDLE, "),
        # Known, and nothing is of it.
        ("deadlock", ""),
    ],
)
def test_list_tells_the_codes_to_who_asks_for_another(script: Script, address: str, code: str, said: str) -> None:
    script.kept = kept()
    done = run("list", address, "--verdict", code)
    assert done.exit_code == 0
    assert done.stdout == "None of the snapshots that the agent keeps is such a one.\n"
    assert done.stderr.startswith(said)
    assert bool(done.stderr) == bool(said)


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
