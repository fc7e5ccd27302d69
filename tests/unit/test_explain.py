from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from freezeframe.client.explained import explanation
from freezeframe.client.render import text
from freezeframe.client.render.sections import why
from freezeframe.client.render.style import Style
from freezeframe.judge import wire
from freezeframe.judge.explain import explain
from freezeframe.judge.model import Confidence, Outcome, Snapshot, Verdict
from freezeframe.judge.verdicts import RULES, conclude
from freezeframe.v1 import snapshot_pb2
from tests.support.scene import Engine, Scene

Code = Verdict.Code
SCENES = Path(__file__).parent.parent / "golden" / "scenes"


def pair(age_ms: float, window_ms: float = 1000.0) -> tuple[Scene, int, Engine, Engine]:
    scene = Scene(window_ms=window_ms)
    harness, router, prefill, decode = scene.client(), scene.router(), scene.engine("prefill"), scene.engine("decode")
    scene.owed(harness, router, 30, age_ms=age_ms)
    scene.owed(router, prefill, 30, age_ms=age_ms)
    return scene, router, prefill, decode


def test_a_rule_that_waits_for_longer_silence_is_near() -> None:
    scene, router, _, decode = pair(100)
    scene.gauges(decode)
    told = explain(scene.conclude())
    assert [verdict.code for verdict in told.fired] == [Code.NOT_STUCK]
    near = {each.code: each for each in told.near}
    assert near[Code.ROUTER_DUAL_LEG].holder_pids == (router,)
    assert near[Code.ROUTER_DUAL_LEG].lacks == ("silence of 10 s: none waits for long yet",)


def test_a_rule_that_lacks_a_collector_names_it_and_how_it_ended() -> None:
    scene, router, _, decode = pair(41_000)
    scene.gauges(decode)
    missed = Outcome(
        collector="snapshot_sockets",
        status=Outcome.Status.PARTIAL,
        detail="too late",
        pids_missed=(router, decode.http),
    )
    told = explain(conclude(replace(scene.conclude(), outcomes=(missed,))))
    assert told.fired[0].code is Code.UNDETERMINED
    near = {(each.code, each.holder_pids): each.lacks for each in told.near}
    assert near[Code.ROUTER_DUAL_LEG, (router,)] == (
        "snapshot_sockets, which ended PARTIAL (too late), with nothing that speaks against it",
    )


def test_where_nothing_stands_or_is_near_young_requests_may_lack_one_thing_more() -> None:
    scene, router, prefill, decode = pair(4_000)
    scene.owed(router, decode, 30, age_ms=4_000)
    told = explain(scene.conclude())
    assert told.fired[0].code is Code.UNDETERMINED
    lacks = {(near.code, near.holder_pids): near.lacks for near in told.near}
    for engine, partner in ((prefill, "decode"), (decode, "prefill")):
        (lack,) = lacks[Code.ENGINE_HANDOFF, (engine.http,)]
        assert f"(pid {engine.http}) at rest while {partner} keeps requests for it: " in lack


def test_facts_fired_near_and_silent_are_every_rule() -> None:
    scene, router, prefill, decode = pair(41_000)
    scene.gauges(prefill, bootstrap=30)
    scene.gauges(decode)
    told = explain(scene.conclude())
    assert [verdict.code for verdict in told.fired] == [Code.ROUTER_DUAL_LEG]
    every = {rule.__module__.rpartition(".")[2].upper() for rules in RULES for rule in rules}
    assert {c.name for c in told.silent} | {n.code.name for n in told.near} | {"ROUTER_DUAL_LEG"} == every
    texts = [fact.text for fact in told.facts]
    assert texts[0] == "two looks 1.0 s apart; all collectors ended OK"
    owed = "30 connections have a request that was read and not answered, the oldest for 41.0 s"
    assert f"router (pid {router}), from clients: {owed}" in texts
    assert any(text.startswith(f"decode (pid {decode.http}): ") and "0 running, 0 waiting" in text for text in texts)


def test_of_very_many_engines_those_that_owe_are_in_question_and_the_others_are_counted() -> None:
    scene = Scene(window_ms=1000.0)
    harness, router = scene.client(), scene.router()
    scene.owed(harness, router, 30, age_ms=41_000)
    engines = [scene.engine("prefill") for _ in range(9)] + [scene.engine("decode") for _ in range(9)]
    scene.owed(router, engines[4], 30, age_ms=41_000)
    told = explain(scene.conclude())
    texts = [fact.text for fact in told.facts]
    assert next(text for text in texts if text.startswith("prefill (pid ")).startswith(
        f"prefill (pid {engines[4].http}): 30 connections have a request that was read and not answered"
    )
    assert {text.partition(":")[0] for text in texts if "engine" in text.partition(":")[0]} == {
        f"router (pid {router}), to engines", "17 more engines, of which nothing is supposed"
    }  # fmt: skip
    held = {near.holder_pids for near in told.near}
    assert held <= {(engines[4].http,), (engines[4].scheduler,), (router,)}


@pytest.mark.parametrize("name", sorted(path.stem for path in SCENES.glob("*.binpb")))
def test_a_supposition_changes_no_verdict(name: str) -> None:
    snapshot = conclude(wire.from_bytes((SCENES / f"{name}.binpb").read_bytes(), Snapshot))
    told = explain(snapshot)
    assert told.fired == snapshot.findings
    standing = {(verdict.code, verdict.holder_pids) for verdict in told.fired}
    assert not standing & {(near.code, near.holder_pids) for near in told.near}
    assert all(near.lacks for near in told.near)


def test_the_chain_as_text_and_what_the_agent_said_otherwise() -> None:
    scene, *_ = pair(100)
    snapshot = wire.to_message(scene.conclude())
    assert isinstance(snapshot, snapshot_pb2.Snapshot)
    told = explanation(snapshot)
    assert told is not None
    page = text.render(why.sections(told, snapshot), Style())
    assert page.startswith("Facts\n  - two looks 1.0 s apart; all collectors ended OK\n")
    assert "Rules that stand\n  - NOT_STUCK: " in page
    assert "Rules that are near\n" in page
    snapshot.verdict.code = 33
    assert "The agent said UNDETERMINED; this version judges the same records to be NOT_STUCK." in " ".join(
        text.render(why.sections(told, snapshot), Style()).split()
    )
    assert why.to_plain(told)["fired"][0]["confidence"] in Confidence.Level.__members__
