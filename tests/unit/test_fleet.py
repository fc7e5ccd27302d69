"""One verdict over several hosts, in their own words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from freezeframe.judge.correlate.joined import PIDS, join_hosts
from freezeframe.judge.fleet import conclude_fleet
from freezeframe.judge.model import Meta, Process, Snapshot, Verdict
from freezeframe.judge.needed import needed
from freezeframe.judge.verdicts import conclude
from tests.replay.cases import CORPUS, read
from tests.support.cut import cut
from tests.support.odd import MOMENTS, NUMBERS, TEXTS, full, with_all

Code = Verdict.Code


@pytest.fixture(name="parts")
def dual_leg() -> dict[str, Snapshot]:
    return cut(read(CORPUS / "router-dual-leg-sglang-router-before.ffz"))


def pid_of(part: Snapshot, role: Process.Role) -> int:
    return next(p.pid for p in conclude(part).processes if p.role is role)


def test_the_words_name_hosts(parts: dict[str, Snapshot]) -> None:
    fleet = conclude_fleet(list(parts.values()))
    verdict = fleet.verdict
    router = pid_of(parts["routers"], Process.Role.ROUTER)
    harness = verdict.attribution[0]
    assert (verdict.code, verdict.holder_pids, verdict.holder_hosts) == (Code.ROUTER_DUAL_LEG, (router,), ("routers",))
    assert verdict.summary.startswith(
        f"The router (pid {router} on routers) holds 30 requests of harness.py (pid {harness.pid} on clients), oldest "
    )
    assert harness.host == "clients"


def test_references_lead_into_the_snapshot_of_the_host(parts: dict[str, Snapshot]) -> None:
    for finding in conclude_fleet(list(parts.values())).findings:
        for each in finding.evidence:
            for ref in each.ref.split():
                host, _, place = ref.rpartition("/")
                if host:
                    kind, _, rest = place.partition("[")
                    getattr(parts[host], kind)[int(rest.partition("]")[0])]


def test_commands_have_the_pids_of_their_host(parts: dict[str, Snapshot]) -> None:
    own = {str(p.pid) for part in parts.values() for p in part.processes}
    verdict = conclude_fleet(list(parts.values())).verdict
    for step in verdict.next_steps:
        command, _, why = step.partition("  # ")
        named = [word for word in command.replace("/", " ").split() if word in own]
        assert not named or why.startswith("on ")


def test_hosts_of_one_name_are_told_apart(parts: dict[str, Snapshot]) -> None:
    several = [replace(part, meta=replace(part.meta or Meta(), host="node")) for part in parts.values()]
    fleet = conclude_fleet(several)
    assert list(fleet.names.values()) == ["node#1", "node#2", "node#3", "node#4"]
    assert fleet.verdict.holder_hosts == ("node#2",)


def test_a_host_that_brought_nothing_is_unknown_and_makes_nothing_well() -> None:
    parts = cut(read(CORPUS / "idle-smg-0.ffz"))
    assert conclude_fleet(list(parts.values())).verdict.code is Code.IDLE
    verdict = conclude_fleet(list(parts.values()), {"gpu-09": "no route to host"}).verdict
    assert verdict.code is Code.UNDETERMINED
    assert verdict.summary.startswith(f"Of the {len(parts)} hosts that answered: No request is in flight: ")
    assert verdict.summary.endswith(" 1 brought nothing.")
    assert verdict.unknowns[0] == "gpu-09 brought nothing: no route to host"


def test_clocks_that_differ_change_nothing_and_captures_that_do_are_said(parts: dict[str, Snapshot]) -> None:
    def began(part: Snapshot, at: str) -> Snapshot:
        return replace(part, meta=replace(part.meta or Meta(), started_at=at))

    several = [began(part, "2026-11-30T12:00:00.000Z") for name, part in parts.items() if name != "decode"]
    decode = began(parts["decode"], "2026-11-30T12:00:02.000Z")
    at_once = conclude_fleet([*several, decode], ahead_ms=[0.0, 0.0, 0.0, 2_000.0]).verdict
    assert at_once == conclude_fleet([*several, parts["decode"]]).verdict
    later = conclude_fleet([*several, decode], ahead_ms=[0.0, 0.0, 0.0, 0.0]).verdict
    assert later.unknowns[-1] == "decode was looked at 2.0 s after the first host: its ages are lessened by that"


def test_no_host_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="no snapshot"):
        conclude_fleet([])


@pytest.mark.parametrize(
    "odd",
    [
        *({FieldDescriptor.CPPTYPE_DOUBLE: each} for each in NUMBERS[FieldDescriptor.CPPTYPE_DOUBLE]),
        # No kernel gives pids from 2**22 on, and none gives 0.
        *({FieldDescriptor.CPPTYPE_UINT32: each} for each in (2**32 - 1, 2**22, 2**22 - 1, 1, 0)),
        *({FieldDescriptor.CPPTYPE_STRING: each} for each in (*TEXTS, *MOMENTS, "10.0.0.2:30000", "[::]:0", "1:" * 50)),
        {FieldDescriptor.CPPTYPE_ENUM: 9999},
    ],
    ids=ascii,
)
def test_one_host_that_says_what_none_can_leaves_a_verdict(parts: dict[str, Snapshot], odd: dict[int, Any]) -> None:
    strange = needed(with_all(full(), odd)).snapshot
    for several in ([*parts.values(), strange], [strange, *parts.values()]):
        fleet = conclude_fleet(several, {}, [float("nan")] * len(several))
        hosts = {host for finding in fleet.findings for host in finding.holder_hosts}
        assert hosts <= {*fleet.names.values(), ""}


def test_pids_that_no_kernel_gives_stay_with_their_host(parts: dict[str, Snapshot]) -> None:
    """Those of one host never stand for a process of another."""
    router = pid_of(parts["routers"], Process.Role.ROUTER)
    # With the number of the third host in front of it.
    liar = Snapshot(meta=Meta(host="liar"), processes=(Process(pid=2 * PIDS + router, title="liar"),))
    joined = join_hosts([liar, *parts.values()]).snapshot
    titles = {p.title for p in joined.processes if p.pid == 3 * PIDS + router}
    assert titles == {p.title for p in parts["routers"].processes if p.pid == router}
