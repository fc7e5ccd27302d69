"""Every case cut into hosts (clients, routers, prefill, decode) and judged as a fleet: the verdict of the whole."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import cast

import pytest

from freezeframe.client.explained import explanation
from freezeframe.judge import wire
from freezeframe.judge.correlate import correlate_joined
from freezeframe.judge.correlate.joined import join_hosts, own_pid
from freezeframe.judge.explain import explain, explain_fleet
from freezeframe.judge.fleet import conclude_fleet
from freezeframe.judge.model import Meta, Snapshot, Verdict
from freezeframe.judge.needed import needed
from freezeframe.judge.verdicts import conclude, concluded
from freezeframe.v1 import snapshot_pb2
from tests.replay.cases import QUIET, Case, Judged, cases
from tests.replay.test_mutations import allowed
from tests.replay.test_replay import UNTOLD
from tests.support.cut import cut

CASES = cases()
Code = Verdict.Code
RECORDED = [case for case in CASES if case.kind != "synthetic"]


def whole(case: Case) -> Snapshot:
    return conclude(case.load())


def as_fleet(case: Case, parts: dict[str, Snapshot]) -> Verdict:
    if case.kind != "synthetic":
        fleet = conclude_fleet(list(parts.values()))
        pids = {str(p.pid) for p in fleet.snapshot.processes}
        assert not pids & set(re.findall(r"\d+", repr(fleet.findings))), fleet.findings
        return fleet.verdict
    # Scenes are written with roles that no name in them tells.
    joined = join_hosts(list(parts.values()))
    verdict = concluded(joined.snapshot, correlate_joined(joined)).verdict
    assert verdict is not None
    return replace(verdict, holder_pids=tuple(map(own_pid, verdict.holder_pids)))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_hosts_together_say_what_one_said(case: Case) -> None:
    verdict = whole(case).verdict
    assert verdict is not None
    parts = cut(case.load())
    fleet = as_fleet(case, parts)
    assert (fleet.code, sorted(fleet.holder_pids)) == (verdict.code, sorted(verdict.holder_pids)), fleet.summary
    assert fleet.explains == verdict.explains
    if case.kind != "synthetic":
        at = {p.pid: name for name, part in parts.items() for p in part.processes}
        assert fleet.holder_hosts == tuple(at[pid] for pid in fleet.holder_pids)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_what_is_needed_of_each_host_says_all_that_the_whole_says(case: Case) -> None:
    """In every word and reference, attribution and rates included."""
    parts = list(cut(case.load()).values())
    # As an agent sends them: with its own verdict.
    light = [needed(cast("snapshot_pb2.Snapshot", wire.to_message(conclude(part)))) for part in parts]
    fleet = conclude_fleet([each.snapshot for each in light], positions=[each.positions for each in light])
    assert fleet.findings == conclude_fleet(parts).findings
    assert fleet.snapshot.hops == conclude_fleet(parts).snapshot.hops


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_what_is_needed_of_a_host_explains_as_the_whole_does(case: Case) -> None:
    snapshot = whole(case)
    assert explanation(cast("snapshot_pb2.Snapshot", wire.to_message(snapshot))) == explain(snapshot)


@pytest.mark.parametrize("case", RECORDED, ids=[case.name for case in RECORDED])
def test_near_of_hosts_together_is_what_was_near_of_one(case: Case) -> None:
    snapshot = whole(case)
    alone = explain(snapshot)
    parts = cut(snapshot)
    fleet = conclude_fleet(parts.values())
    told = explain_fleet(fleet)
    at = {p.pid: name for name, part in parts.items() for p in part.processes}
    assert {(near.code, near.holder_pids) for near in told.near} == {(n.code, n.holder_pids) for n in alone.near}
    assert {near.holder_hosts == tuple(at[pid] for pid in near.holder_pids) for near in told.near} <= {True}
    assert (told.silent, told.fired) == (alone.silent, fleet.findings)
    pids = {str(p.pid) for p in fleet.snapshot.processes}
    assert not pids & set(re.findall(r"\d+", repr(told)))
    kinds = {ref.partition("/")[0] for fact in told.facts for ref in fact.ref.split()}
    assert kinds <= set(parts)


@pytest.mark.parametrize("case", RECORDED, ids=[case.name for case in RECORDED])
def test_a_host_that_brings_nothing_makes_nobody_else_guilty(case: Case) -> None:
    if case.name in UNTOLD:
        return
    snapshot = whole(case)
    assert snapshot.verdict is not None
    stand = {(finding.code, finding.holder_pids) for finding in snapshot.findings}
    faults = []
    parts = cut(case.load())
    for gone in parts:
        left = [part for name, part in parts.items() if name != gone]
        if not left:
            continue
        verdict = conclude_fleet(left, {gone: "no route to host"}).verdict
        assert verdict.unknowns[0] == f"{gone} brought nothing: no route to host"
        true = Judged(case=case, verdict=verdict).how == "exact" or (verdict.code, verdict.holder_pids) in stand
        # Who is not looked at is named by address.
        by_address = verdict.code is snapshot.verdict.code and not verdict.holder_pids and verdict.holder_address
        # The bed keeps these streams open by a batch that stands: that no client waits only the router knows.
        kept_open = (snapshot.verdict.code, gone, verdict.code) == (
            Code.ZOMBIE_UPSTREAM,
            "routers",
            Code.DECODE_STALLED,
        )
        if not (true or by_address or kept_open) and not allowed(snapshot.verdict, verdict, healthy=case.healthy):
            faults.append(f"without {gone}: {verdict.code.name} {verdict.holder_pids}: {verdict.summary}")
    assert not faults, f"{snapshot.verdict.code.name} {snapshot.verdict.holder_pids}\n" + "\n".join(faults)


@pytest.mark.parametrize("case", RECORDED, ids=[case.name for case in RECORDED])
def test_a_host_that_is_looked_at_later_makes_nobody_else_guilty(case: Case) -> None:
    """These were looked at together: their ages are taken for those of another instant, and prove less."""
    if case.name in UNTOLD:
        return
    snapshot = whole(case)
    assert snapshot.verdict is not None
    stand = {(finding.code, finding.holder_pids) for finding in snapshot.findings}
    parts = cut(case.load())
    several = [began(part, 2 if name == "routers" else 0) for name, part in parts.items()]
    verdict = conclude_fleet(several, ahead_ms=[0.0] * len(several)).verdict
    true = (verdict.code, verdict.holder_pids) in stand or verdict.code in QUIET
    assert true or allowed(snapshot.verdict, verdict, healthy=case.healthy), verdict.summary


def began(part: Snapshot, second: int) -> Snapshot:
    return replace(part, meta=replace(part.meta or Meta(), started_at=f"2026-11-30T12:00:0{second}.000Z"))
