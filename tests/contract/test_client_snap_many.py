"""snap of several hosts at once, against agents that answer what they were told."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from freezeframe.judge import file
from freezeframe.v1 import service_pb2
from tests.support.canned_agent import Script, canned_agent, done_of, step
from tests.support.command import run
from tests.support.fleet_file import hosts

pytestmark = pytest.mark.usefixtures("alone")
IN_PART = 4


def script_of(name: str) -> Script:
    part = hosts()[name]
    data = file.write([part], "tests")
    snapshot = file.read(data).hosts[0]
    snapshot.meta.snapshot_id = f"{name}-1"
    return Script(
        data=file.write([snapshot], "tests"), steps=[step("snapshot_sockets"), step("snapshot_sockets", "OK")]
    )


@pytest.fixture(name="scripts")
def four() -> dict[str, Script]:
    return {name: script_of(name) for name in hosts()}


@pytest.fixture(name="config")
def configuration(scripts: dict[str, Script], tmp_path: Path) -> Iterator[Path]:
    """Hosts by name, of which node-5 is not there, and all of them as a group."""
    with contextlib.ExitStack() as stack:
        lines = ["[groups]", 'all = ["node-[1-4]"]']
        for number, script in enumerate(scripts.values(), 1):
            path = stack.enter_context(canned_agent(script))
            lines += [f"[hosts.node-{number}]", f'address = "unix:{path}"']
        lines += ["[hosts.node-5]", f'address = "unix:{tmp_path}/nobody/capture.sock"']
        folder = tmp_path / "config" / "freezeframe"
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text("\n".join(lines))
        yield folder


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("named", [("node-[1-4]",), ("--group", "all"), ("node-1", "node-2", "node-[3-4]")])
def test_one_verdict_over_all_and_one_file(named: tuple[str, ...]) -> None:
    done = run("snap", *named, "-o", "all.ffz")
    # The agents of this case brought some of it only.
    assert done.exit_code in (0, IN_PART)
    assert done.stdout.startswith("ROUTER_DUAL_LEG   high confidence   router pid ")
    assert done.stdout.splitlines()[0].endswith(" on routers")
    lines = done.stderr.splitlines()
    assert sorted(line.split()[:2] for line in lines[:-1]) == [[f"node-{n}", "captured"] for n in (1, 2, 3, 4)]
    assert lines[-1] == "all.ffz"
    contents = file.read(Path("all.ffz").read_bytes())
    assert contents.lost == ()
    assert [part.asked for part in contents.manifest.hosts] == ["node-1", "node-2", "node-3", "node-4"]
    for name, got in zip(hosts(), contents.hosts, strict=True):
        want = file.read(script_of(name).data).hosts[0]
        assert got == want
    assert run("show", "all.ffz").stdout.splitlines()[:3] == done.stdout.splitlines()[:3]


@pytest.mark.usefixtures("config")
@pytest.mark.parametrize("option", ["-p", "--client"])
def test_a_pid_is_of_one_host(option: str) -> None:
    done = run("snap", "node-[1-4]", option, "4711")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1] == (
        f"Error: {option}: a pid is one host's: capture that host alone, or give --client the client's address"
    )


@pytest.mark.usefixtures("config")
def test_where_captures_all_and_keeps_no_file() -> None:
    done = run("where", "eval-19-50", "node-[1-4]")
    assert done.exit_code == 0
    assert "(pid 7471 on prefill)" in done.stdout
    assert list(Path().glob("*.ffz")) == []


@pytest.mark.usefixtures("config")
def test_the_default_name_says_fleet() -> None:
    done = run("snap", "node-[1-4]")
    (path,) = Path().glob("*.ffz")
    assert path.name.startswith("fleet-2026")
    assert done.stderr.splitlines()[-1] == path.name


@pytest.mark.usefixtures("config")
def test_a_host_that_is_not_there_is_said_and_holds_up_nobody() -> None:
    done = run("snap", "node-[1-5]", "-o", "all.ffz")
    assert done.exit_code == IN_PART
    assert any(line.startswith("node-5  nothing came  ") for line in done.stderr.splitlines())
    assert done.stdout.startswith("ROUTER_DUAL_LEG ")
    (missing,) = file.read_manifest(Path("all.ffz").read_bytes()).missing
    assert (missing.host, bool(missing.error), bool(missing.hint)) == ("node-5", True, True)
    shown = json.loads(run("show", "all.ffz", "--output", "json").stdout)
    assert shown["fleet"]["outcomes"][0]["collector"] == "node-5"


@pytest.mark.usefixtures("config")
def test_one_that_refuses_and_one_that_breaks_off(scripts: dict[str, Script]) -> None:
    clients, routers, prefill, decode = scripts.values()
    prefill.refusal = (grpc.StatusCode.PERMISSION_DENIED, "", None)
    decode.done = done_of(b"something else")
    done = run("snap", "node-[1-4]", "-o", "all.ffz")
    assert done.exit_code == IN_PART
    manifest = file.read_manifest(Path("all.ffz").read_bytes())
    assert [part.meta.host for part in manifest.hosts] == ["clients", "routers"]
    assert [each.host for each in manifest.missing] == ["node-3", "node-4"]
    assert "refuses" in manifest.missing[0].error
    assert clients.requests
    assert routers.requests


def test_none_at_all_exits_3(config: Path) -> None:
    done = run("snap", "node-5", "unix:/nowhere/capture.sock")
    assert done.exit_code == 3
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1] == "Error: none of 2 hosts brought a snapshot"
    assert list(Path().glob("*.ffz")) == []


@pytest.mark.usefixtures("config")
def test_two_names_of_one_agent_count_once(scripts: dict[str, Script]) -> None:
    scripts["decode"].data = scripts["prefill"].data
    run("snap", "node-[1-4]", "-o", "all.ffz")
    (missing,) = file.read_manifest(Path("all.ffz").read_bytes()).missing
    assert (missing.host, missing.error) == ("node-4", "it is the same agent as node-3, whose snapshot is there")


@pytest.mark.usefixtures("config")
def test_all_begin_at_one_instant(scripts: dict[str, Script]) -> None:
    """Each answers only when all four have been asked."""
    asked = threading.Barrier(4)

    def together(data: bytes) -> Any:
        def events(_request: Any, _context: Any) -> Iterator[service_pb2.CaptureEvent]:
            asked.wait(20)
            yield service_pb2.CaptureEvent(progress=step("snapshot_sockets"))
            yield service_pb2.CaptureEvent(chunk=service_pb2.Chunk(data=data))
            yield service_pb2.CaptureEvent(done=done_of(data))

        return events

    for script in scripts.values():
        script.capture = together(script.data)
    assert run("snap", "node-[1-4]", "-o", "all.ffz").exit_code in (0, IN_PART)


@pytest.mark.usefixtures("config")
def test_clocks_are_estimated_with_their_error(scripts: dict[str, Script]) -> None:
    ahead_s = 7.5

    def late(data: bytes) -> Any:
        def events(_request: Any, _context: Any) -> Iterator[service_pb2.CaptureEvent]:
            snapshot = file.read(data).hosts[0]
            began = time.time() + ahead_s
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(began)) + f".{int(began % 1 * 1000):03d}Z"
            snapshot.meta.started_at = text
            again = file.write([snapshot], "tests")
            yield service_pb2.CaptureEvent(progress=step("snapshot_sockets"))
            yield service_pb2.CaptureEvent(chunk=service_pb2.Chunk(data=again))
            yield service_pb2.CaptureEvent(done=done_of(again))

        return events

    scripts["decode"].capture = late(scripts["decode"].data)
    run("snap", "node-[1-4]", "-o", "all.ffz")
    part = file.read_manifest(Path("all.ffz").read_bytes()).hosts[3]
    assert abs(part.ahead_ms - ahead_s * 1000) <= part.ahead_error_ms + 5
    assert part.ahead_error_ms < 5_000


def test_what_is_no_host_is_said_before_anything_is_captured(config: Path) -> None:
    for arguments, said in (
        (("gpu-[2-1]",), "is no set of hosts"),
        (("--group", "none"), "there is no group none (known: all)"),
    ):
        done = run("snap", *arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert said in done.stderr


def test_node_sets_in_the_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "config" / "freezeframe"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'[hosts."gpu-[01-02]"]\naddress = "unix:{tmp_path}/{{host}}/capture.sock"\n')
    done = run("snap", "gpu-[01-02]")
    assert done.exit_code == 3
    assert f"{tmp_path}/gpu-01" in done.stderr
    assert f"{tmp_path}/gpu-02" in done.stderr
