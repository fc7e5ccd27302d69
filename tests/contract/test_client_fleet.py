"""Files of several hosts: shown, reported, exported, compared."""

from __future__ import annotations

import json
import os
import re
import sys
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest

from freezeframe.client import files, spooled
from freezeframe.judge import file
from freezeframe.judge.needed import UNREAD
from freezeframe.v1 import file_pb2
from tests.support.command import run
from tests.support.fleet_file import CASE, GONE, fleet_bytes, hosts

pytestmark = pytest.mark.usefixtures("alone")
HOSTS = ("clients", "routers", "prefill", "decode")


@pytest.fixture(autouse=True)
def a_file(alone: None) -> None:
    Path("a.ffz").write_bytes(fleet_bytes(CASE, GONE))


def test_show_says_what_the_hosts_say_together_and_alone() -> None:
    done = run("show", "a.ffz")
    assert (done.exit_code, done.stderr) == (0, "")
    head, *_ = done.stdout.splitlines()
    assert head.startswith("ROUTER_DUAL_LEG   high confidence   router pid ")
    assert head.endswith(" on routers")
    assert "client 30 ▸ [router 30] ▸ prefill 30" in done.stdout
    assert "  - gpu-09 FAILED: connecting to gpu-09: no route to host" in done.stdout
    table = done.stdout.partition("\nHosts\n")[2].splitlines()
    assert [line.split()[:2] for line in table[1:]] == [
        ["clients", "UNDETERMINED"],
        ["routers", "ROUTER_DUAL_LEG"],
        ["prefill", "UNDETERMINED"],
        ["decode", "IDLE"],
    ]


def test_show_says_what_is_damaged_of_a_host_and_keeps_the_verdict() -> None:
    whole = Path("a.ffz").read_bytes()
    _, routers, *_ = spooled.open_head("a.ffz")[1]
    place = routers.begin + routers.size - 5
    Path("a.ffz").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    done = run("show", "a.ffz")
    assert done.exit_code == 5
    assert done.stdout.startswith("ROUTER_DUAL_LEG   high confidence   router pid ")
    assert "routers: " in done.stderr
    assert "its bytes do not match their digest" in done.stderr


def test_show_of_a_fleet_unpacks_no_section_that_no_rule_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is passed over the digest is looked at, and what the hosts say is in every word the same."""
    unpacked = run("show", "a.ffz", "--why").stdout.partition("\nRuled out")[0]
    names: list[str] = []
    unpack = file._unpack

    def told(section: file_pb2.Section, *rest: Any) -> Any:
        names.append(section.name)
        return unpack(section, *rest)

    monkeypatch.setattr(file, "_unpack", told)
    shown = run("show", "a.ffz").stdout
    assert "sockets" in names
    assert not UNREAD & set(names)
    assert unpacked.splitlines()[:2] == shown.splitlines()[:2]


# References to a snapshot that the watch itself has, and Python where it counts them.
_OURS = 3


class Watch:
    """What is read and unpacked of hosts, in this order, and how many of them are in memory when one more is read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.read: list[str] = []
        self.unpacked: list[str] = []
        self.at_once: list[int] = []
        self._known: list[Any] = []
        self._sections, self._unpack = spooled.Host.sections, file._unpack
        self._whole = spooled.Host.read
        # A bound method would not be given the host.
        monkeypatch.setattr(spooled.Host, "sections", lambda host: self._take(host))  # noqa: PLW0108
        monkeypatch.setattr(spooled.Host, "read", lambda *given: self._host(*given))  # noqa: PLW0108
        monkeypatch.setattr(file, "_unpack", self._section)

    def _take(self, host: spooled.Host) -> bytes:
        self.read.append(host.part.meta.host)
        return self._sections(host)

    def _host(self, *given: Any) -> Any:
        snapshot = self._whole(*given)
        # Who else has it: messages take no weak references.
        held = sum(sys.getrefcount(known) > _OURS for known in self._known)
        self.at_once.append(held + 1)
        self._known.append(snapshot)
        return snapshot

    def _section(self, section: file_pb2.Section, *rest: Any) -> Any:
        self.unpacked.append(section.name)
        return self._unpack(section, *rest)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def test_of_a_host_that_is_named_nothing_is_read_but_what_is_shown(watch: Watch) -> None:
    done = run("show", "a.ffz", "sockets", "python", "--host", "decode")
    assert (done.exit_code, done.stderr) == (0, "")
    assert (watch.read, watch.unpacked) == (["decode"], ["sockets", "python_threads", "ranks"])
    assert done.stdout.startswith("Sockets\n")
    assert "\nHosts\n" not in done.stdout


def test_the_verdict_of_a_host_that_is_named_is_its_own(watch: Watch) -> None:
    shown = run("show", "a.ffz", "--host", "decode").stdout
    assert (watch.read, watch.unpacked) == (["decode"], ["findings", "hops"])
    assert shown.startswith("IDLE ")
    assert json.loads(run("show", "a.ffz", "--host", "decode", "--output", "json").stdout)["meta"]["host"] == "decode"


def test_a_host_that_is_not_there_is_said_with_those_that_are() -> None:
    for command in (("show", "a.ffz"), ("report", "a.ffz"), ("export", "a.ffz", "--to", "folded")):
        done = run(*command, "--host", "gpu-09")
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr == (
            "Error: opening a.ffz: it has no host 'gpu-09'\n"
            "Hint: it has clients, routers, prefill, decode: freezeframe show FILE\n"
        )


def test_sections_of_a_fleet_are_read_once_to_judge_and_once_to_be_shown(watch: Watch) -> None:
    assert run("show", "a.ffz", "processes").exit_code == 0
    assert watch.read == [*HOSTS, *HOSTS]
    assert watch.unpacked[-4:] == ["processes"] * 4
    assert max(watch.at_once) == 2


@pytest.mark.parametrize(
    ("command", "times"),
    [
        (("show", "a.ffz", "all"), 2),
        (("show", "a.ffz", "--output", "json"), 2),
        (("show", "a.ffz"), 1),
        (("where", "eval-19-50", "a.ffz"), 1),
        (("where", "eval-19-50", "a.ffz", "--output", "json"), 2),
        (("export", "a.ffz", "--to", "perfetto", "-o", "out"), 2),
        (("export", "a.ffz", "--to", "otlp", "-o", "out"), 2),
    ],
)
def test_hosts_are_read_one_after_the_other_and_not_kept(watch: Watch, command: tuple[str, ...], times: int) -> None:
    assert run(*command).exit_code == 0
    assert watch.read == [*HOSTS] * times
    # The one before ends when its place is taken.
    assert max(watch.at_once) <= 2


def test_diff_reads_a_pair_after_the_other(watch: Watch) -> None:
    assert run("diff", "a.ffz", "a.ffz", "--output", "json").exit_code == 0
    assert watch.read == [name for name in HOSTS for _ in range(2)]
    assert max(watch.at_once) <= 4
    assert run("diff", "a.ffz", "a.ffz", "--host", "decode").exit_code == 0
    assert watch.read[8:] == ["decode"] * 2


@pytest.mark.parametrize("command", [("report", "a.ffz"), ("export", "a.ffz", "--to", "pprof", "-o", "out")])
def test_what_takes_all_hosts_at_once_is_refused_of_too_many(
    monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setattr(files, "MOST_AT_ONCE_BYTES", 10_000)
    done = run(*command)
    assert (done.exit_code, done.stdout) == (2, "")
    assert re.fullmatch(
        r"Error: (re|ex)porting a.ffz: it takes all 4 hosts in memory at once, and their records are \d MB, more than "
        r"0 MB\nHint: choose one with --host NAME: clients, routers, prefill, decode\n",
        done.stderr,
    )
    assert run(*command, "--host", "routers").exit_code == 0


def test_a_report_of_one_host_has_the_verdict_over_all_too() -> None:
    text = run("report", "a.ffz", "--host", "decode").stdout
    assert text.index(" on routers") < text.index("IDLE")


def test_a_file_from_a_pipe_is_shown_as_one_that_lies_there() -> None:
    os.mkfifo("pipe")
    data = Path("a.ffz").read_bytes()
    writer = threading.Thread(target=Path("pipe").write_bytes, args=(data,))
    writer.start()
    shown = run("show", "pipe", "hops")
    writer.join()
    assert shown.stdout.replace("pipe", "a.ffz") == run("show", "a.ffz", "hops").stdout


def test_show_of_sections_says_whose_they_are() -> None:
    done = run("show", "a.ffz", "sockets")
    assert [line for line in done.stdout.splitlines() if line.startswith("On ")] == [f"On {name}" for name in HOSTS]


def test_why_leads_to_the_records_of_the_hosts() -> None:
    text = run("show", "a.ffz", "--why").stdout
    assert "    routers/sockets[0]: " in text
    assert "    decode/metrics[" in text
    assert "not in this snapshot" not in text
    assert "\nOn " not in text


def test_why_says_what_the_rules_were_given_of_all_hosts_and_which_are_near() -> None:
    page = " ".join(run("show", "a.ffz", "--why").stdout.split())
    _, facts, fired, near, *_ = re.split(
        "Facts - |Rules that stand - |Rules that are near |Rules that do not stand ", page
    )
    assert re.search(r"client harness.py \(pid \d+ on clients\): 30 in flight", facts)
    assert re.search(
        r"router \(pid 7474 on routers\), from clients: 30 connections have a request that was read", facts
    )
    assert fired.startswith("ROUTER_DUAL_LEG (router pid 7474 on routers): HIGH, explains 30 requests")
    assert near
    shown = json.loads(run("show", "a.ffz", "verdict", "--why", "--output", "json").stdout)
    assert shown["fleet"]["why"]["fired"][0]["holder_hosts"] == ["routers"]
    assert [each["why"]["fired"][0]["code"] for each in shown["hosts"]] == [
        each["verdict"]["code"] for each in shown["hosts"]
    ]


def test_json_has_the_fleet_and_its_hosts() -> None:
    shown = json.loads(run("show", "a.ffz", "--output", "json").stdout)
    assert shown["fleet"]["verdict"]["code"] == "ROUTER_DUAL_LEG"
    assert shown["fleet"]["verdict"]["holder_hosts"] == ["routers"]
    assert [outcome["collector"] for outcome in shown["fleet"]["outcomes"]] == ["gpu-09"]
    assert [each["meta"]["host"] for each in shown["hosts"]] == list(HOSTS)


def test_brief_is_five_lines_over_all() -> None:
    lines = run("show", "a.ffz", "--output", "brief").stdout.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith(
        "ROUTER_DUAL_LEG (high confidence) on 5 hosts: clients, routers, prefill, decode, gpu-09 "
    )
    assert lines[4] == "not seen: gpu-09 FAILED; file: a.ffz"


def test_a_fleet_whose_sections_are_lost_keeps_its_verdict() -> None:
    data = Path("a.ffz").read_bytes()
    Path("cut.ffz").write_bytes(data[: file.manifest_end(data)])
    done = run("show", "cut.ffz", "--output", "json")
    assert done.exit_code == 5
    shown = json.loads(done.stdout)
    assert (len(shown["hosts"]), shown["fleet"]["verdict"]["code"]) == (4, "ROUTER_DUAL_LEG")


def test_a_report_begins_with_the_verdict_over_all_hosts() -> None:
    text = run("report", "a.ffz").stdout
    assert "ROUTER" in text
    assert text.index("on routers") < text.index("UNDETERMINED")
    assert run("report", "a.ffz", "-o", "r.tgz").exit_code == 0
    with tarfile.open("r.tgz") as archive:
        packed = archive.extractfile("freezeframe-report/snapshot.ffz")
        assert packed is not None
        manifest = file.read_manifest(packed.read())
    assert [part.meta.host for part in manifest.hosts] == list(HOSTS)
    assert list(manifest.verdict.holder_hosts) == ["routers"]
    assert list(manifest.missing) == [GONE]


def test_an_anonymised_report_names_no_host() -> None:
    text = run("report", "a.ffz", "--anonymise").stdout
    assert "gpu-09" not in text
    assert "on routers" not in text


def test_otlp_has_the_verdict_over_all_hosts_first() -> None:
    logs = json.loads(run("export", "a.ffz", "--to", "otlp").stdout)["resourceLogs"]
    assert len(logs) == 1 + len(HOSTS)
    attributes = {a["key"]: a["value"] for a in logs[0]["scopeLogs"][0]["logRecords"][0]["attributes"]}
    assert attributes["freezeframe.holder_hosts"] == {"arrayValue": {"values": [{"stringValue": "routers"}]}}


@pytest.mark.parametrize("form", ["folded", "speedscope", "pprof", "perfetto"])
def test_what_is_of_hosts_is_exported_of_each(form: str) -> None:
    done = run("export", "a.ffz", "--to", form, "-o", "out")
    assert done.exit_code == 0
    assert Path("out").stat().st_size > 100


def test_where_follows_a_request_from_host_to_host() -> None:
    done = run("where", "eval-19-50", "a.ffz")
    assert (done.exit_code, done.stderr) == (0, "gpu-09 brought nothing: connecting to gpu-09: no route to host\n")
    head = done.stdout.splitlines()[0]
    assert head.startswith("eval-19-50 is in ")
    assert " on this host" not in done.stdout
    assert "router (pid 7474 on routers)" in done.stdout
    assert "(pid 7471 on prefill)" in done.stdout
    shown = json.loads(run("where", "eval-19-50", "a.ffz", "--output", "json").stdout)
    assert shown["hop"] in head
    assert [each["host"] for each in shown["hosts"] if each["requests"]] == ["routers", "prefill"]
    assert run("where", "nothing", "a.ffz").stdout.startswith("nothing was not seen. ")


def test_diff_says_what_became_of_the_verdict_over_all_hosts() -> None:
    text = run("diff", "a.ffz", "a.ffz").stdout
    head, line = text.splitlines()[:2]
    assert head == "All hosts together"
    assert line.startswith("  - unchanged: ROUTER_DUAL_LEG (high, router pid ")
    Path("b.ffz").write_bytes(fleet_bytes("none-sglang-router-0"))
    told = run("diff", "a.ffz", "b.ffz").stdout.partition("\n\n")[0]
    assert "  - before: " in told
    assert "  - after: " in told


def test_diff_pairs_the_hosts_of_fleets() -> None:
    done = run("diff", "a.ffz", "a.ffz", "--output", "json")
    assert done.exit_code == 0
    assert len(json.loads(done.stdout)) == len(hosts())
